//! The task that owns the connection of a client: what is asked goes out in one parcel per turn, and what comes back goes to
//! whoever asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use filch_core::wire::talk::{
    Ask, Chunk, ClientCard, Ended, LARGEST_PACKET, Packet, Parts, Refused, Reply, Request, Role, Said, Submit,
    Submitted, Watch,
};
use prost::Message as _;
use rustc_hash::FxHashMap;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

use super::{ClientError, ClientOptions};
use crate::dial::{Dial, DialError};
use crate::link::{Arrival, Outgoing, Parcel, weight_of_said};

/// The most that one request may weigh.
pub const LARGEST_REQUEST: usize = LARGEST_PACKET / 8 * 7;
/// What goes into one parcel, about.
const PARCEL: usize = 4 << 20;
/// Bytes that wait for somebody who follows a request, before the coordinator is told to say no more for now.
pub(super) const MOST_WAITING: usize = 16 << 20;
/// Bytes below which it is asked to go on.
pub(super) const FEW_WAITING: usize = 4 << 20;
/// Orders that are taken in one turn.
const ORDERS: usize = 4096;

/// What the clerk is told.
pub(super) enum Order {
    /// Ask this.
    Ask { id: u64, pending: Pending },
    /// Nobody wants to hear more of a request.
    Stop(u64),
    /// Whoever follows a request has taken most of what waited.
    Taken(u64),
    /// Something came.
    Arrival { generation: u64, arrival: Arrival },
    /// Nobody is left.
    Close,
}

/// A request that is not over.
pub(super) enum Pending {
    /// Answered once.
    Once { ask: Ask, reply: oneshot::Sender<Result<Said, ClientError>> },
    /// A single task that somebody waits for.
    Single { ask: Ask, reply: oneshot::Sender<Result<Box<Ended>, ClientError>> },
    /// Answered again and again.
    Follow(Following),
}

/// A request that is answered again and again.
pub(super) struct Following {
    pub(super) ask: Ask,
    pub(super) stream: UnboundedSender<Result<Said, ClientError>>,
    /// Bytes that wait in it, about.
    pub(super) waiting: Arc<AtomicUsize>,
    /// What became of the submission, once it is known.
    submitted: Option<Submitted>,
    heard: Heard,
    /// So much waits that nothing more is taken; what comes is asked for again later.
    paused: bool,
    /// The connection was lost meanwhile: whoever is there now may know the job by its key alone.
    cut_off: bool,
}

impl Following {
    pub(super) fn new(
        ask: Ask,
        stream: UnboundedSender<Result<Said, ClientError>>,
        waiting: Arc<AtomicUsize>,
    ) -> Following {
        Following { ask, stream, waiting, submitted: None, heard: Heard::default(), paused: false, cut_off: false }
    }

    /// What is asked after a break.
    fn ask_again(&self) -> Ask {
        let mut ask = self.ask.clone();
        match &mut ask {
            Ask::Submit(submit) => submit.heard = self.heard.runs(),
            Ask::Watch(watch) => watch.heard = self.heard.runs(),
            _ => {}
        }
        ask
    }

    /// What is asked after a pause. The same coordinator knows the job, however large it was.
    fn go_on(&mut self) -> Ask {
        match self.submitted {
            Some(Submitted { job, .. }) if job > 0 && !std::mem::take(&mut self.cut_off) => {
                Ask::Watch(Watch { job, each: true, heard: self.heard.runs() })
            }
            _ => self.ask_again(),
        }
    }

    /// Takes in what is said; what follows from it.
    fn said(&mut self, said: Said) -> Follows {
        if self.paused {
            return Follows::Nothing;
        }
        // After a break it is said again.
        let again = match &said {
            Said::Submitted(submitted) => self.submitted.replace(*submitted).is_some(),
            Said::Ended(ended) => ended.job > 0 && !self.heard.note(ended.index),
            Said::Output(chunk) => {
                note_seen(&mut self.ask, chunk);
                false
            }
            _ => false,
        };
        if again {
            return Follows::Nothing;
        }
        let is_over = match &said {
            Said::JobDone(_) | Said::Done(_) => true,
            Said::Ended(_) => is_single(&self.ask),
            _ => false,
        };
        let weight = weight_of_said(&said);
        let before = self.waiting.fetch_add(weight, Ordering::Relaxed);
        // Whoever asked may have gone meanwhile.
        let _ = self.stream.send(Ok(said));
        if is_over {
            return Follows::End;
        }
        // Ends can be told later; of what a running task writes little is kept for those who come late.
        let can_wait = matches!(self.ask, Ask::Submit(_) | Ask::Watch(_));
        self.paused = can_wait && before + weight > MOST_WAITING;
        if self.paused { Follows::Pause } else { Follows::Nothing }
    }
}

/// What follows from what was said to somebody.
enum Follows {
    Nothing,
    /// Nothing more is taken for now.
    Pause,
    /// Nothing more will be said.
    End,
}

/// The tasks of a job whose end was heard of, a bit for each position.
#[derive(Default)]
pub(super) struct Heard(Vec<u64>);

impl Heard {
    /// Notes one; whether it is new.
    fn note(&mut self, index: u32) -> bool {
        let (word, bit) = (index as usize / 64, 1 << (index % 64));
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }

    /// The first of each run and the first after it.
    fn runs(&self) -> Vec<u32> {
        let has = |index: u32| self.0.get(index as usize / 64).is_some_and(|word| word >> (index % 64) & 1 == 1);
        let end = self.0.len() as u32 * 64;
        (0..=end).filter(|&index| has(index) != (index > 0 && has(index - 1))).collect()
    }
}

impl Pending {
    fn ask(&self) -> &Ask {
        match self {
            Pending::Once { ask, .. } | Pending::Single { ask, .. } => ask,
            Pending::Follow(following) => &following.ask,
        }
    }

    /// What is asked after a break, if anything.
    fn ask_again(&mut self) -> Option<Ask> {
        match self {
            Pending::Follow(following) => {
                following.cut_off = following.paused;
                (!following.paused).then(|| following.ask_again())
            }
            _ => Some(self.ask().clone()),
        }
    }

    /// It will not be answered. Whoever asked may have gone meanwhile.
    fn fail(self, error: ClientError) {
        match self {
            Pending::Once { reply, .. } => drop(reply.send(Err(error))),
            Pending::Single { reply, .. } => drop(reply.send(Err(error))),
            Pending::Follow(following) => drop(following.stream.send(Err(error))),
        }
    }
}

/// About how many bytes a request has.
fn weight(ask: &Ask) -> usize {
    match ask {
        Ask::Submit(submit) => 64 + submit.encoded_len(),
        Ask::Query(text) | Ask::Drain(text) => 64 + text.len(),
        _ => 64,
    }
}

/// Refuses what cannot be sent.
pub(super) fn check_size(submit: &Submit) -> Result<(), ClientError> {
    let weight = submit.encoded_len();
    if weight > LARGEST_REQUEST { Err(ClientError::TooLarge(weight)) } else { Ok(()) }
}

/// The clerk.
pub(super) struct Clerk {
    dial: Dial,
    options: ClientOptions,
    sender: UnboundedSender<Order>,
    inbox: UnboundedReceiver<Order>,
    line: Option<Outgoing>,
    generation: u64,
    /// When the connection was lost, and how often it was made in vain since; until something comes over a new one.
    lost: Option<(Instant, u32)>,
    pending: FxHashMap<u64, Pending>,
    requests: Vec<Request>,
    weight: usize,
    closed: bool,
}

impl Clerk {
    pub(super) async fn connect(
        dial: Dial,
        options: ClientOptions,
        sender: UnboundedSender<Order>,
        inbox: UnboundedReceiver<Order>,
    ) -> Result<Clerk, ClientError> {
        let patience = options.connect_for;
        let mut clerk = Clerk {
            dial,
            options,
            sender,
            inbox,
            line: None,
            generation: 0,
            lost: None,
            pending: FxHashMap::default(),
            requests: Vec::new(),
            weight: 0,
            closed: false,
        };
        clerk.dial(Instant::now(), 0, patience).await?;
        Ok(clerk)
    }

    /// Connects, and tries again for a while.
    async fn dial(&mut self, began: Instant, mut failures: u32, patience: Duration) -> Result<(), DialError> {
        loop {
            self.generation += 1;
            let (generation, sender) = (self.generation, self.sender.clone());
            let deliver = move |arrival| sender.send(Order::Arrival { generation, arrival }).is_ok();
            let role = Role::Client(ClientCard { name: self.options.name.clone() });
            match self.dial.connect(role, deliver).await {
                Ok((_, out)) => {
                    self.line = Some(out);
                    return Ok(());
                }
                Err(error @ DialError::Refused(_)) => return Err(error),
                Err(error) => {
                    failures += 1;
                    let pause = self.options.backoff.pause(failures);
                    if began.elapsed() + pause > patience {
                        return Err(error);
                    }
                    tracing::warn!(%error, ?pause, "no coordinator");
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    pub(super) async fn run(mut self) {
        let mut batch = Vec::new();
        loop {
            if self.inbox.recv_many(&mut batch, ORDERS).await == 0 {
                return;
            }
            for order in batch.drain(..) {
                self.take(order);
            }
            self.flush();
            if self.closed {
                return;
            }
            if self.line.is_none() && !self.pending.is_empty() {
                self.reconnect().await;
            }
        }
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Ask { id, pending } => {
                if self.line.is_some() {
                    self.request(id, pending.ask().clone());
                }
                self.pending.insert(id, pending);
            }
            Order::Stop(id) => {
                if self.pending.remove(&id).is_some() && self.line.is_some() {
                    self.request(id, Ask::Stop(id));
                }
            }
            Order::Taken(id) => {
                if let Some(Pending::Follow(following)) = self.pending.get_mut(&id)
                    && std::mem::take(&mut following.paused)
                    && self.line.is_some()
                {
                    let ask = following.go_on();
                    self.request(id, ask);
                }
            }
            Order::Arrival { generation, arrival } if generation == self.generation => match arrival {
                Arrival::Parcel(parcel) => {
                    self.lost = None;
                    for reply in parcel.packet.replies {
                        self.replied(reply);
                    }
                }
                Arrival::Closed(_) => self.line = None,
            },
            Order::Arrival { .. } => {}
            Order::Close => self.closed = true,
        }
    }

    fn request(&mut self, id: u64, ask: Ask) {
        let weight = weight(&ask);
        if self.weight + weight > PARCEL {
            self.flush();
        }
        self.weight += weight;
        self.requests.push(Request { id, ask: Some(ask) });
    }

    fn flush(&mut self) {
        self.weight = 0;
        let requests = std::mem::take(&mut self.requests);
        if requests.is_empty() {
            return;
        }
        if let Some(out) = &self.line
            && !out.send(Parcel::of(Packet { requests, ..Packet::default() }))
        {
            self.line = None;
        }
    }

    /// Connects again and asks again what was not answered, in the order it was asked.
    async fn reconnect(&mut self) {
        let (since, failures) = self.lost.unwrap_or((Instant::now(), 0));
        self.lost = Some((since, failures + 1));
        let patience = self.options.reconnect_for;
        let mut outcome = Err(DialError::Again("it closes every connection".to_owned()));
        if failures == 0 || since.elapsed() < patience {
            // The first time at once; one that brought nothing is not made again without a pause.
            if failures > 0 {
                tokio::time::sleep(self.options.backoff.pause(failures)).await;
            }
            outcome = self.dial(since, failures, patience).await;
        }
        if let Err(error) = outcome {
            self.lost = None;
            for (_, pending) in self.pending.drain() {
                pending.fail(ClientError::Lost(error.to_string()));
            }
            return;
        }
        let mut ids: Vec<u64> = self.pending.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            if let Some(ask) = self.pending.get_mut(&id).and_then(Pending::ask_again) {
                self.request(id, ask);
            }
        }
        self.flush();
    }

    fn replied(&mut self, reply: Reply) {
        let Reply { id, said: Some(said) } = reply else { return };
        let Some(pending) = self.pending.get_mut(&id) else { return };
        if let Said::Refused(Refused { why, retry_after_nanos }) = said {
            let retry_after = retry_after_nanos.map(Duration::from_nanos);
            if let Some(pending) = self.pending.remove(&id) {
                pending.fail(ClientError::Refused { why, retry_after });
            }
            return;
        }
        match pending {
            Pending::Once { .. } => {
                if let Some(Pending::Once { reply, .. }) = self.pending.remove(&id) {
                    // Whoever asked may have gone meanwhile; so everywhere below.
                    let _ = reply.send(Ok(said));
                }
            }
            Pending::Single { reply, .. } => match said {
                Said::Ended(ended) => {
                    if let Some(Pending::Single { reply, .. }) = self.pending.remove(&id) {
                        let _ = reply.send(Ok(ended));
                    }
                }
                _ if reply.is_closed() => {
                    self.pending.remove(&id);
                    self.request(id, Ask::Stop(id));
                }
                _ => {}
            },
            Pending::Follow(following) => match following.said(said) {
                Follows::Nothing => {}
                Follows::Pause => self.request(id, Ask::Stop(id)),
                Follows::End => {
                    self.pending.remove(&id);
                }
            },
        }
    }
}

/// What was seen of an output is not asked for again.
fn note_seen(ask: &mut Ask, chunk: &Chunk) {
    let Ask::Logs(logs) = ask else { return };
    if chunk.attempt > logs.attempt {
        (logs.attempt, logs.seen_stdout, logs.seen_stderr) = (chunk.attempt, 0, 0);
    }
    let seen = if chunk.stderr { &mut logs.seen_stderr } else { &mut logs.seen_stdout };
    *seen = (*seen).max(chunk.offset + chunk.bytes.len() as u64);
}

fn is_single(ask: &Ask) -> bool {
    matches!(ask, Ask::Submit(submit) if matches!(submit.parts, Some(Parts::Single(_))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_heard_is_told_as_runs() {
        let mut heard = Heard::default();
        assert!(heard.runs().is_empty());
        for index in [0, 1, 63, 64, 65, 200] {
            assert!(heard.note(index));
        }
        assert!(!heard.note(64));
        assert_eq!(heard.runs(), [0, 2, 63, 66, 200, 201]);
        (192..256).for_each(|index| {
            heard.note(index);
        });
        assert_eq!(heard.runs(), [0, 2, 63, 66, 192, 256]);
    }
}
