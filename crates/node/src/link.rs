//! Connections: parcels go out in order, and come in where whoever owns them waits for everything.
//!
//! Over a socket a parcel is a length and a [`Packet`]; within a process it is handed over as it is. A connection that
//! sends nonsense, or too much, or whose other side takes nothing, is closed. Never answers anything itself.
//!
//! What is small is written by whoever sends it, if the socket takes it at once and nothing waits before it: waking a task
//! for it would take longer than writing. Everything else is encoded and written by a task of the connection.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use filch_core::wire::talk::{Body, Ending, Input, LARGEST_PACKET, Packet, Reply, Said};
use filch_core::wire::{Columns, Frame, Message};
use prost::Message as _;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Parcels of one connection that wait to be looked at. What comes beyond that stays in the socket.
const AHEAD: usize = 32;
/// Bytes that wait to be sent to somebody who does not take them.
const MOST_WAITING: usize = 128 << 20;
/// A parcel that has so many bytes goes as it is, and what follows makes another: the other side takes no packet of any size.
pub(crate) const HEAVY: usize = 8 << 20;
/// What is written at once, about.
const WRITE: usize = 128 << 10;
/// Room for what comes next.
const ROOM: usize = 1 << 10;
/// What is written by whoever sends it, at the most.
const SMALL: usize = 8 << 10;

/// What goes over a connection at once.
#[derive(Debug, Default)]
pub struct Parcel {
    /// The life of the coordinator that sends it; 0 from anybody else.
    pub epoch: u64,
    /// What the machine says.
    pub messages: Vec<Message>,
    /// What its driver says.
    pub packet: Packet,
    /// Holds a place in the queue of its connection.
    room: Option<OwnedSemaphorePermit>,
}

impl Parcel {
    /// A parcel without messages of a machine.
    #[must_use]
    pub fn of(packet: Packet) -> Parcel {
        Parcel { packet, ..Parcel::default() }
    }

    /// Whether it says nothing at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.packet == Packet::default()
    }

    /// About how many bytes it has.
    fn weight(&self) -> usize {
        let packet = &self.packet;
        let bodies: usize = packet.bodies.iter().map(|body| body.work.len()).sum();
        let inputs: usize = packet.inputs.iter().map(|input| input.bytes.len()).sum();
        let endings: usize = packet.endings.iter().map(weight_of_ending).sum();
        let replies: usize = packet.replies.iter().map(weight_of_reply).sum();
        let chunks: usize = packet.chunks.iter().map(|chunk| chunk.bytes.len() + 32).sum();
        let relays: usize = packet.relays.iter().map(|relay| relay.packet.len() + 32).sum();
        let requests: usize = packet.requests.iter().map(prost::Message::encoded_len).sum();
        256 + self.messages.len() * 48 + bodies + inputs + endings + replies + chunks + relays + requests
    }

    /// The same in parcels that are not too heavy: of an offer, each has some of the orders with all that they need. The other side
    /// takes several offers to one question as it takes one.
    #[expect(clippy::vec_box, reason = "parcels are large, and stay where they are")]
    pub(crate) fn in_parts(self: Box<Parcel>) -> Vec<Box<Parcel>> {
        if self.weight() <= HEAVY {
            return vec![self];
        }
        let Parcel { epoch, messages, mut packet, .. } = *self;
        let bodies: FxHashMap<u64, Body> =
            std::mem::take(&mut packet.bodies).into_iter().map(|body| (body.handle, body)).collect();
        let inputs = std::mem::take(&mut packet.inputs).into_iter();
        let mut inputs: FxHashMap<(u64, u32), Input> = inputs.map(|one| ((one.handle, one.index), one)).collect();
        let mut parts = Vec::new();
        let mut part = Parcel { epoch, packet, ..Parcel::default() };
        let (mut bytes, mut there) = (0, FxHashSet::default());
        for message in messages {
            let Message::Offer { request, orders, depth } = message else {
                part.messages.push(message);
                continue;
            };
            let mut together = Vec::new();
            for order in orders {
                let body = bodies.get(&order.payload);
                let input = inputs.remove(&(order.payload, order.index));
                let new = body.filter(|body| !there.contains(&body.handle));
                let weighs = new.map_or(0, |body| body.work.len()) + input.as_ref().map_or(0, |one| one.bytes.len());
                if bytes > 0 && bytes + weighs > HEAVY {
                    let orders = std::mem::take(&mut together);
                    if !orders.is_empty() {
                        part.messages.push(Message::Offer { request, orders, depth });
                    }
                    parts.push(Box::new(std::mem::replace(&mut part, Parcel { epoch, ..Parcel::default() })));
                    bytes = 0;
                    there.clear();
                }
                if let Some(body) = body
                    && there.insert(body.handle)
                {
                    bytes += body.work.len();
                    part.packet.bodies.push(body.clone());
                }
                if let Some(input) = input {
                    bytes += input.bytes.len();
                    part.packet.inputs.push(input);
                }
                together.push(order);
            }
            if !together.is_empty() {
                part.messages.push(Message::Offer { request, orders: together, depth });
            }
        }
        parts.push(Box::new(part));
        parts
    }

    /// All of it as a packet.
    pub(crate) fn as_packet(&mut self) -> &Packet {
        if !self.messages.is_empty() {
            self.packet.frame = Some(Box::new(Columns::of(self.epoch, &self.messages)));
        }
        &self.packet
    }

    fn encode_into(&mut self, buffer: &mut BytesMut) {
        let packet = self.as_packet();
        let length = packet.encoded_len();
        buffer.reserve(length + 4);
        buffer.put_u32_le(length as u32);
        packet.encode_raw(buffer);
    }

    // Where it stays from its beginning to its end: it is large, and moving it about takes longer than reading it.
    pub(crate) fn decode(bytes: Bytes) -> io::Result<Box<Parcel>> {
        let garbled = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut parcel = Box::<Parcel>::default();
        parcel.packet.merge(bytes).map_err(|error| garbled(error.to_string()))?;
        if let Some(columns) = parcel.packet.frame.take() {
            let Frame { epoch, messages } = columns.read().map_err(|error| garbled(error.to_string()))?;
            (parcel.epoch, parcel.messages) = (epoch, messages);
        }
        Ok(parcel)
    }
}

/// About how many bytes there are to say of the end of an attempt.
pub(crate) fn weight_of_ending(ending: &Ending) -> usize {
    64 + ending.stdout.len() + ending.stderr.len() + ending.result.len() + ending.error.len()
}

/// About how many bytes a reply has.
pub(crate) fn weight_of_reply(reply: &Reply) -> usize {
    reply.said.as_ref().map_or(0, weight_of_said)
}

/// About how many bytes there are in what is said.
pub(crate) fn weight_of_said(said: &Said) -> usize {
    let more = match said {
        Said::Ended(ended) => ended.ending.as_deref().map_or(0, weight_of_ending),
        Said::Json(text) => text.len(),
        Said::Output(chunk) => chunk.bytes.len(),
        _ => 0,
    };
    256 + more
}

/// What comes of a connection.
#[derive(Debug)]
pub enum Arrival {
    /// Something was sent.
    Parcel(Box<Parcel>),
    /// Nothing more will come, and why.
    Closed(String),
}

type Deliver = Arc<dyn Fn(Arrival) -> bool + Send + Sync>;

/// The way out of a connection. When the last one is dropped, the connection is closed after all that was sent.
#[derive(Clone)]
pub struct Outgoing(Way);

#[derive(Clone)]
enum Way {
    Socket {
        pen: Arc<Pen>,
        queue: mpsc::UnboundedSender<Queued>,
    },
    /// Closes the other side when it goes.
    Near(Arc<Near>),
}

/// Writes to a socket.
struct Pen {
    state: Mutex<PenState>,
    /// Bytes that wait to be taken by the other side, about.
    waiting: AtomicUsize,
}

struct PenState {
    writer: Box<dyn AsyncWrite + Unpin + Send>,
    /// What whoever sent it could not write to its end.
    left: BytesMut,
    /// How much of what was queued is not written. Until it is, nobody else writes.
    queued: usize,
}

/// What the task of a connection is to write.
enum Queued {
    Parcel(Box<Parcel>),
    /// The rest of a parcel of this weight.
    Left(usize),
}

struct Near(Deliver);

impl Drop for Near {
    fn drop(&mut self) {
        (self.0)(Arrival::Closed("closed".to_owned()));
    }
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outgoing")
    }
}

impl Outgoing {
    /// One that hands everything to somebody in the same process. `deliver` says whether that one still listens.
    pub fn near(deliver: impl Fn(Arrival) -> bool + Send + Sync + 'static) -> Outgoing {
        Outgoing(Way::Near(Arc::new(Near(Arc::new(deliver)))))
    }

    /// Sends; whether the connection takes it. One that does not is as good as closed.
    pub fn send(&self, parcel: impl Into<Box<Parcel>>) -> bool {
        let mut parcel = parcel.into();
        match &self.0 {
            Way::Near(near) => (near.0)(Arrival::Parcel(parcel)),
            Way::Socket { pen, queue } => {
                let weight = parcel.weight();
                if pen.waiting.fetch_add(weight, Ordering::Relaxed) > MOST_WAITING || queue.is_closed() {
                    return false;
                }
                let mut state = pen.lock();
                let queued = if state.queued > 0 || weight > SMALL {
                    Queued::Parcel(parcel)
                } else if state.write_now(&mut parcel) {
                    pen.waiting.fetch_sub(weight, Ordering::Relaxed);
                    return true;
                } else {
                    Queued::Left(weight)
                };
                state.queued += 1;
                queue.send(queued).is_ok()
            }
        }
    }
}

/// Follows a connection: what comes goes to `deliver`, which says whether anybody still wants it; the last that it gets
/// is `Closed`.
///
/// `rest` is what was read already and belongs to what comes.
pub fn attach<R, W>(
    reader: R,
    writer: W,
    rest: BytesMut,
    deliver: impl Fn(Arrival) -> bool + Send + Sync + 'static,
) -> Outgoing
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (queue, out) = mpsc::unbounded_channel();
    let state = PenState { writer: Box::new(writer), left: BytesMut::new(), queued: 0 };
    let pen = Arc::new(Pen { state: Mutex::new(state), waiting: AtomicUsize::new(0) });
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let writing = Arc::clone(&pen);
    tokio::spawn(async move {
        write_all(&writing, out).await;
        // Whoever has nothing more to say does not listen either.
        drop(stop);
    });
    tokio::spawn(async move {
        let why = tokio::select! {
            why = read_all(reader, rest, &deliver) => why,
            _ = stopped => "closed here".to_owned(),
        };
        deliver(Arrival::Closed(why));
    });
    Outgoing(Way::Socket { pen, queue })
}

impl Pen {
    /// Whoever panicked with it has said so.
    fn lock(&self) -> MutexGuard<'_, PenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PenState {
    /// Writes a parcel as far as that is possible at once; whether that is all of it. An error is left to the task of the
    /// connection, which meets it again.
    fn write_now(&mut self, parcel: &mut Parcel) -> bool {
        parcel.encode_into(&mut self.left);
        // Nobody is to be woken by it: who goes on asks again.
        let written = self.poll_write(&mut BytesMut::new(), &mut Context::from_waker(Waker::noop()));
        matches!(written, Poll::Ready(Ok(())))
    }

    /// Writes what is left, then what is in the buffer.
    fn poll_write(&mut self, buffer: &mut BytesMut, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut writer = Pin::new(&mut self.writer);
        for bytes in [&mut self.left, buffer] {
            while !bytes.is_empty() {
                let count = ready!(writer.as_mut().poll_write(context, bytes))?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                bytes.advance(count);
            }
        }
        writer.poll_flush(context)
    }
}

async fn write_all(pen: &Pen, mut out: mpsc::UnboundedReceiver<Queued>) {
    let mut buffer = BytesMut::new();
    while let Some(first) = out.recv().await {
        let (mut weight, mut count) = (0, 0);
        let mut next = Some(first);
        while let Some(queued) = next {
            count += 1;
            match queued {
                Queued::Parcel(mut parcel) => {
                    weight += parcel.weight();
                    parcel.encode_into(&mut buffer);
                }
                Queued::Left(weighs) => weight += weighs,
            }
            next = if buffer.len() < WRITE { out.try_recv().ok() } else { None };
        }
        let written = poll_fn(|context| pen.lock().poll_write(&mut buffer, context)).await;
        if written.is_err() {
            return;
        }
        pen.waiting.fetch_sub(weight, Ordering::Relaxed);
        pen.lock().queued -= count;
        if buffer.capacity() > 4 * WRITE {
            buffer = BytesMut::new();
        }
    }
    let _ = poll_fn(|context| Pin::new(&mut pen.lock().writer).poll_shutdown(context)).await;
}

async fn read_all<R: AsyncRead + Unpin>(
    mut reader: R,
    mut buffer: BytesMut,
    deliver: &(impl Fn(Arrival) -> bool + Send + Sync),
) -> String {
    let room = Arc::new(Semaphore::new(AHEAD));
    loop {
        let mut parcel = match read_parcel(&mut reader, &mut buffer, LARGEST_PACKET).await {
            Ok(Some(parcel)) => parcel,
            Ok(None) => return "closed by the other side".to_owned(),
            // Whoever is killed says no farewell.
            Err(error) if is_farewell(&error) => return "cut off by the other side".to_owned(),
            Err(error) => {
                if error.kind() == io::ErrorKind::InvalidData {
                    tracing::warn!(%error, "a connection is closed because of what came");
                }
                return error.to_string();
            }
        };
        // Mostly there is a place, and then nothing need be set up to wait for one.
        parcel.room = match Arc::clone(&room).try_acquire_owned() {
            Ok(place) => Some(place),
            Err(_) => Arc::clone(&room).acquire_owned().await.ok(),
        };
        if !deliver(Arrival::Parcel(parcel)) {
            return "closed here".to_owned();
        }
    }
}

/// Whether an error says no more than that the other side has gone, as whoever is killed does.
pub(crate) fn is_farewell(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
}

/// Reads one parcel of at most `largest` bytes; none if the connection ended before it.
pub(crate) async fn read_parcel<R: AsyncRead + Unpin>(
    reader: &mut R,
    buffer: &mut BytesMut,
    largest: usize,
) -> io::Result<Option<Box<Parcel>>> {
    let cut_off = || io::Error::new(io::ErrorKind::UnexpectedEof, "cut off in the middle of a packet");
    while buffer.len() < 4 {
        // Most parcels are small, and come with one read where there is room for all of it.
        if buffer.capacity() - buffer.len() < ROOM / 4 {
            buffer.reserve(ROOM);
        }
        if reader.read_buf(buffer).await? == 0 {
            return if buffer.is_empty() { Ok(None) } else { Err(cut_off()) };
        }
    }
    let length = (&buffer[..4]).get_u32_le() as usize;
    if length > largest {
        let what = format!("a packet of {length} bytes, and at most {largest} are taken");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    buffer.advance(4);
    // What was announced is not believed before it comes: memory grows with what is there.
    while buffer.len() < length {
        let more = (length - buffer.len()).min(1 << 20);
        buffer.reserve(more);
        if reader.read_buf(buffer).await? == 0 {
            return Err(cut_off());
        }
    }
    Parcel::decode(buffer.split_to(length).freeze()).map(Some)
}

/// Writes one parcel and waits until it is out.
pub(crate) async fn write_parcel<W: AsyncWrite + Unpin>(writer: &mut W, mut parcel: Parcel) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    parcel.encode_into(&mut buffer);
    writer.write_all_buf(&mut buffer).await?;
    writer.flush().await
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;

    use filch_core::wire::Order;
    use filch_core::{CapabilitySet, Demand, Held, KindId, Span, TaskId, Time};

    use super::*;

    fn parcel(handle: u64, bytes: usize) -> Parcel {
        let body = Body { handle, work: vec![7; bytes].into(), shared: false };
        Parcel::of(Packet { bodies: vec![body], ..Packet::default() })
    }

    /// What is written at once by whoever sends it, what is written later, and the rest of what was begun: all of it comes in
    /// the order in which it was sent, to somebody who reads slowly.
    #[tokio::test]
    async fn parcels_of_all_sizes_come_in_their_order() {
        for room in [1, 100, 5_000, 1 << 20] {
            let (here, there) = tokio::io::duplex(room);
            let (reader, writer) = tokio::io::split(here);
            let out = attach(reader, writer, BytesMut::new(), |_| true);
            let (mut reader, _writer) = tokio::io::split(there);
            let sizes = [0, 10, 3_000, 0, 20_000, 5, 900, 0, 200_000, 1, 2];
            let sending = tokio::spawn(async move {
                for handle in 0..200 {
                    assert!(out.send(parcel(handle, sizes[handle as usize % sizes.len()])));
                    if handle % 3 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            });
            let mut buffer = BytesMut::new();
            for handle in 0..200 {
                let came = read_parcel(&mut reader, &mut buffer, LARGEST_PACKET).await.unwrap().unwrap();
                let body = &came.packet.bodies[0];
                assert_eq!((body.handle, body.work.len()), (handle, sizes[handle as usize % sizes.len()]));
            }
            sending.await.unwrap();
            // The last one who could send is gone, so the connection ends after all of it.
            assert!(read_parcel(&mut reader, &mut buffer, LARGEST_PACKET).await.unwrap().is_none());
        }
    }

    #[tokio::test]
    async fn what_is_small_is_written_by_whoever_sends_it() {
        let (here, there) = tokio::io::duplex(1 << 10);
        let (reader, writer) = tokio::io::split(here);
        let out = attach(reader, writer, BytesMut::new(), |_| true);
        let (mut reader, _writer) = tokio::io::split(there);
        assert!(out.send(parcel(1, 10)));
        // No other task had a turn since.
        let mut buffer = [0; 4];
        let read = std::pin::pin!(reader.read_exact(&mut buffer)).poll(&mut Context::from_waker(Waker::noop()));
        assert!(read.is_ready());
    }

    fn order(payload: u64, index: u32) -> Order {
        Order {
            held: Held { task: TaskId::from_bits(payload * 1000 + u64::from(index)), attempt: 1, hop: 1 },
            payload,
            index,
            priority: 3,
            level: 3,
            deadline: Time::NEVER,
            rank: 0,
            sequence: 1,
            kind: KindId::default(),
            expected: Span::ZERO,
            timeout: None,
            requires: CapabilitySet::default(),
            demand: Demand::default(),
            bound: false,
            exclusive: false,
            begins: false,
            patient: false,
        }
    }

    /// Every order comes once, with its body and its input, and no part is too heavy.
    #[test]
    fn an_offer_that_is_too_heavy_goes_in_parts() {
        let body = |handle: u64| Body { handle, work: vec![7; 1 << 20].into(), shared: handle == 1 };
        let input = |index: u32| Input { handle: 1, index, bytes: vec![8; 3 << 20].into(), ..Input::default() };
        // Ten elements that share a body and have inputs, and twenty tasks with bodies of their own.
        let orders: Vec<Order> = (0..10).map(|index| order(1, index)).chain((2..22).map(|own| order(own, 0))).collect();
        let packet =
            Packet { bodies: (1..22).map(body).collect(), inputs: (0..10).map(input).collect(), ..Packet::default() };
        let ask = Message::Accept { holds: Vec::new() };
        let offer = Message::Offer { request: 5, orders: orders.clone(), depth: 9 };
        let whole = Parcel { messages: vec![ask.clone(), offer], ..Parcel::of(packet) };
        let parts = Box::new(whole).in_parts();
        let mut seen = Vec::new();
        for part in &parts {
            assert!(part.weight() < HEAVY + (64 << 10), "{}", part.weight());
            for message in &part.messages {
                let Message::Offer { request: 5, orders, depth: 9 } = message else { continue };
                for order in orders {
                    assert!(part.packet.bodies.iter().any(|body| body.handle == order.payload));
                    let gets =
                        part.packet.inputs.iter().any(|one| (one.handle, one.index) == (order.payload, order.index));
                    assert_eq!(gets, order.payload == 1);
                    seen.push(order.held.task);
                }
            }
        }
        let all: Vec<TaskId> = orders.iter().map(|order| order.held.task).collect();
        assert_eq!((seen, parts.len()), (all, 8));
        assert_eq!(parts[0].messages[0], ask);
        // What is light stays as it is.
        assert_eq!(Box::new(parcel(1, 10)).in_parts().len(), 1);
    }

    #[tokio::test]
    async fn a_connection_whose_other_side_is_gone_takes_nothing_more() {
        let (here, there) = tokio::io::duplex(1 << 10);
        let (reader, writer) = tokio::io::split(here);
        let (closed, mut told) = mpsc::unbounded_channel();
        let out = attach(reader, writer, BytesMut::new(), move |arrival| closed.send(arrival).is_ok());
        drop(there);
        assert!(matches!(told.recv().await, Some(Arrival::Closed(_))));
        while out.send(parcel(1, 10)) {
            tokio::task::yield_now().await;
        }
    }
}
