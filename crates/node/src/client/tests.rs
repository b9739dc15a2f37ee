//! Clients with a coordinator made of nothing but a door and a script.

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use filch_core::wire::VERSION;
use filch_core::wire::talk::{Answer, Array, Chunk, Ending, Packet, Progress, Refused, Reply, Request, Role};
use tokio::net::TcpListener;

use super::*;
use crate::access::Access;
use crate::door::Door;
use crate::link::{Arrival, Parcel, attach};
use crate::view::JobView;

const TOKEN: Bytes = Bytes::from_static(b"a token for tests");

/// What the coordinator answers to a request of its `nth` connection; nothing at all cuts the connection.
type Script = Arc<dyn Fn(usize, &Ask) -> Option<Vec<Said>> + Send + Sync>;

struct House {
    access: Access,
    /// Requests that came, and in how many parcels.
    heard: Arc<Mutex<(Vec<Request>, usize)>>,
}

impl House {
    async fn open(script: impl Fn(usize, &Ask) -> Option<Vec<Said>> + Send + Sync + 'static) -> House {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = vec![listener.local_addr().unwrap().to_string()];
        let (door, script): (_, Script) = (Arc::new(Door::new(None, TOKEN)), Arc::new(script));
        let heard = Arc::<Mutex<(Vec<Request>, usize)>>::default();
        let (seen, connections) = (Arc::clone(&heard), Arc::new(AtomicUsize::new(0)));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (door, script, seen) = (Arc::clone(&door), Arc::clone(&script), Arc::clone(&seen));
                let nth = connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let Ok(admitted) = door.admit(socket).await else { return };
                    assert!(matches!(&admitted.opening.role, Some(Role::Client(card)) if card.name == "me"));
                    let answer = Answer { version: VERSION, ..Answer::default() };
                    let (reader, writer, rest) = admitted.answer(answer).await.unwrap();
                    let (send, mut receive) = unbounded_channel();
                    let out = attach(reader, writer, rest, move |arrival| send.send(arrival).is_ok());
                    while let Some(Arrival::Parcel(parcel)) = receive.recv().await {
                        seen.lock().unwrap().1 += 1;
                        for request in parcel.packet.requests {
                            seen.lock().unwrap().0.push(request.clone());
                            let Some(answers) = script(nth, request.ask.as_ref().unwrap()) else { return };
                            let reply = |said| Reply { id: request.id, said: Some(said) };
                            let replies = answers.into_iter().map(reply).collect();
                            out.send(Parcel::of(Packet { replies, ..Packet::default() }));
                        }
                    }
                });
            }
        });
        House { access: Access { addresses, pin: None, token: TOKEN }, heard }
    }

    async fn client(&self) -> Client {
        Client::connect(Dial::Socket(self.access.clone()), "me").await.unwrap()
    }

    fn keys(&self) -> Vec<Bytes> {
        let heard = self.heard.lock().unwrap();
        let key = |request: &Request| match &request.ask {
            Some(Ask::Submit(submit)) => Some(submit.key.clone()),
            _ => None,
        };
        heard.0.iter().filter_map(key).collect()
    }
}

fn single() -> Submit {
    Submit { parts: Some(Parts::Single(Part::default())), ..Submit::default() }
}

fn accepted(job: u64, task: u64) -> Said {
    Said::Submitted(Submitted { job, task })
}

fn ended(status: &str, ending: Ending) -> Said {
    let ending = Some(Box::new(ending));
    Said::Ended(Box::new(Ended { status: status.to_owned(), ending, ..Ended::default() }))
}

#[tokio::test]
async fn many_submissions_travel_together_and_each_has_a_key() {
    let house = House::open(|_, _| Some(vec![accepted(0, 5)])).await;
    let client = house.client().await;
    let asked: Vec<_> = (0..2000)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.submit(single()).await })
        })
        .collect();
    for one in asked {
        assert_eq!(one.await.unwrap(), Ok(Submitted { job: 0, task: 5 }));
    }
    let mut keys = house.keys();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 2000, "no two have the same");
    assert!(house.heard.lock().unwrap().1 < 100, "in {} parcels", house.heard.lock().unwrap().1);
}

#[tokio::test]
async fn what_was_not_answered_is_sent_again_under_the_same_key() {
    // The first two connections break in the middle.
    let house = House::open(|nth, _| (nth >= 2).then(|| vec![accepted(3, 0)])).await;
    let client = house.client().await;
    assert_eq!(client.submit(single()).await, Ok(Submitted { job: 3, task: 0 }));
    let keys = house.keys();
    assert_eq!(keys.len(), 3);
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
}

#[tokio::test]
async fn what_is_refused_for_now_is_submitted_again_and_not_for_ever() {
    let full = |after: u64| Said::Refused(Refused { why: "full".to_owned(), retry_after_nanos: Some(after) });
    let tries = AtomicUsize::new(0);
    let house = House::open(move |_, _| {
        Some(vec![if tries.fetch_add(1, Ordering::SeqCst) < 3 { full(1_000_000) } else { accepted(1, 0) }])
    })
    .await;
    assert_eq!(house.client().await.submit(single()).await, Ok(Submitted { job: 1, task: 0 }));
    assert_eq!(house.keys().len(), 4);

    let house = House::open(move |_, _| Some(vec![full(20_000_000)])).await;
    let options = ClientOptions { resubmit_for: Duration::from_millis(100), ..ClientOptions::new("me") };
    let client = Client::connect_with(Dial::Socket(house.access.clone()), options).await.unwrap();
    let error = client.submit(single()).await.unwrap_err();
    assert!(matches!(error, ClientError::Refused { retry_after: Some(_), .. }), "{error:?}");
    let wrong = House::open(|_, _| {
        Some(vec![Said::Refused(Refused { why: "no such worker".to_owned(), retry_after_nanos: None })])
    })
    .await;
    let error = wrong.client().await.submit(single()).await.unwrap_err();
    assert_eq!((error.to_string().as_str(), wrong.keys().len()), ("no such worker", 1));
}

#[tokio::test]
async fn a_job_is_followed_to_its_end() {
    let house = House::open(|_, ask| match ask {
        Ask::Submit(submit) => {
            assert!(submit.watch);
            let progress = Progress { job: 3, total: 1, ..Progress::default() };
            let one = ended("completed", Ending::default());
            Some(vec![accepted(3, 0), Said::Progress(progress.clone()), one, Said::JobDone(progress)])
        }
        _ => Some(Vec::new()),
    })
    .await;
    let array = Array { part: Some(Part::default()), count: 1, ..Array::default() };
    let submit = Submit { parts: Some(Parts::Array(array)), ..Submit::default() };
    let (submitted, mut follow) = house.client().await.submit_and_follow(submit).await.unwrap();
    assert_eq!(submitted.job, 3);
    assert!(matches!(follow.next().await, Some(Ok(Said::Progress(_)))));
    assert!(matches!(follow.next().await, Some(Ok(Said::Ended(_)))));
    assert!(matches!(follow.next().await, Some(Ok(Said::JobDone(_)))));
    assert_eq!(follow.next().await, None);
}

#[tokio::test]
async fn who_stops_following_says_so() {
    let house = House::open(|_, ask| match ask {
        Ask::Watch(_) => Some(vec![Said::Progress(Progress::default())]),
        Ask::Query(_) => Some(vec![Said::Json("[]".to_owned())]),
        _ => Some(Vec::new()),
    })
    .await;
    let client = house.client().await;
    let mut follow = client.watch(1, false).await.unwrap();
    assert!(matches!(follow.next().await, Some(Ok(Said::Progress(_)))));
    drop(follow);
    let jobs: Vec<JobView> = client.query(&Query::Jobs { limit: 5 }).await.unwrap();
    assert!(jobs.is_empty());
    let heard = house.heard.lock().unwrap();
    assert!(matches!(heard.0[1].ask, Some(Ask::Stop(id)) if id == heard.0[0].id), "{:?}", heard.0);
}

#[tokio::test]
async fn a_call_brings_its_result_or_what_went_wrong() {
    let house = House::open(|nth, ask| {
        let Ask::Submit(submit) = ask else { return Some(Vec::new()) };
        let Some(Parts::Single(part)) = &submit.parts else { return Some(Vec::new()) };
        let work = Work::decode(part.work.clone()).unwrap();
        let answer = match work.program.unwrap() {
            // Accepted, and cut off before it ends: asked again, it has ended.
            Program::Call(name) if name == "double" && nth == 0 => return None,
            Program::Call(name) if name == "double" => ended(
                "completed",
                Ending { result: [&work.stdin[..], &work.stdin].concat().into(), ..Ending::default() },
            ),
            _ => ended("failed", Ending { error: "it panicked: oh".to_owned(), ..Ending::default() }),
        };
        Some(vec![accepted(0, 9), answer])
    })
    .await;
    let client = house.client().await;
    assert_eq!(client.call("double", "ab").await, Ok(Bytes::from_static(b"abab")));
    let error = client.call("paint", "").await.unwrap_err();
    assert_eq!(error, CallError::Failed { what: "it panicked: oh".to_owned(), status: "failed".to_owned() });
}

#[tokio::test]
async fn logs_are_followed_and_other_questions_answered() {
    let house = House::open(|_, ask| {
        Some(match ask {
            Ask::Logs(_) => {
                let chunk = Chunk { task: 1, stderr: false, bytes: Bytes::from_static(b"hello"), ..Chunk::default() };
                vec![Said::Output(chunk), Said::Done(true)]
            }
            Ask::Query(_) => vec![Said::Json("{\"what\": 1}".to_owned())],
            Ask::Drain(name) if name == "nobody" => {
                vec![Said::Refused(Refused { why: "there is no worker `nobody`".to_owned(), retry_after_nanos: None })]
            }
            _ => vec![Said::Done(true)],
        })
    })
    .await;
    let client = house.client().await;
    let mut logs = client.logs(Logs::default()).await.unwrap();
    assert!(matches!(logs.next().await, Some(Ok(Said::Output(chunk))) if chunk.bytes == "hello"));
    assert_eq!(logs.next().await, Some(Ok(Said::Done(true))));
    assert_eq!(logs.next().await, None);
    assert_eq!(client.cancel(Name::default()).await, Ok(()));
    assert_eq!(client.drain("one").await, Ok(()));
    assert!(matches!(client.drain("nobody").await, Err(ClientError::Refused { .. })));
    let error = client.query::<Vec<JobView>>(&Query::Workers).await.unwrap_err();
    assert!(matches!(error, ClientError::Unexpected(_)), "{error:?}");
}

#[tokio::test]
async fn who_is_refused_or_finds_nobody_hears_why() {
    let house = House::open(|_, _| None).await;
    let wrong = Access { token: Bytes::from_static(b"a guess"), ..house.access.clone() };
    let error = Client::connect(Dial::Socket(wrong), "me").await.err().unwrap();
    assert!(
        matches!(&error, ClientError::Connect(DialError::Refused(why)) if why.contains("token is wrong")),
        "{error:?}"
    );
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let nowhere = Access { addresses: vec![nobody], ..house.access.clone() };
    let error = Client::connect(Dial::Socket(nowhere), "me").await.err().unwrap();
    assert!(matches!(error, ClientError::Connect(DialError::Again(_))), "{error:?}");
    // Always cut off: it gives up after a while.
    let options = ClientOptions { reconnect_for: Duration::from_millis(200), ..ClientOptions::new("me") };
    let client = Client::connect_with(Dial::Socket(house.access.clone()), options).await.unwrap();
    let array = Array { inputs: vec![Bytes::from(vec![0; 60 << 20])], count: 1, ..Array::default() };
    let submit = Submit { parts: Some(Parts::Array(array)), ..Submit::default() };
    assert!(matches!(client.submit(submit).await, Err(ClientError::TooLarge(_))));
    let error = client.submit(single()).await.unwrap_err();
    assert_eq!(error, ClientError::Lost("it closes every connection".to_owned()));
    assert!(house.keys().len() < 20, "it was not tried without pauses: {}", house.keys().len());
}

/// Who does not take what is said has a bounded part of it waiting, and hears the rest later, all of it once; other requests are
/// answered meanwhile.
#[tokio::test]
async fn what_nobody_takes_is_asked_for_later() {
    const TASKS: u32 = 60;
    let output = |index: u32| {
        let ending = Ending { stdout: vec![7; 1 << 20].into(), ..Ending::default() };
        Said::Ended(Box::new(Ended { job: 3, index, ending: Some(Box::new(ending)), ..Ended::default() }))
    };
    let rest = move |heard: &[u32]| {
        let unheard = move |index: &u32| heard.partition_point(|turn| turn <= index) % 2 == 0;
        let ends: Vec<Said> = (0..TASKS).filter(unheard).map(output).collect();
        ends.into_iter().chain([Said::JobDone(Progress { job: 3, ..Progress::default() })])
    };
    let house = House::open(move |_, ask| match ask {
        Ask::Submit(_) => Some([accepted(3, 0)].into_iter().chain(rest(&[])).collect()),
        Ask::Watch(watch) => Some(rest(&watch.heard).collect()),
        Ask::Query(_) => Some(vec![Said::Json("[]".to_owned())]),
        _ => Some(Vec::new()),
    })
    .await;
    let client = house.client().await;
    let array = Array { part: Some(Part::default()), count: TASKS, ..Array::default() };
    let submit = Submit { parts: Some(Parts::Array(array)), ..Submit::default() };
    let (_, mut follow) = client.submit_and_follow(submit).await.unwrap();
    let asked = |what: fn(&Ask) -> bool| {
        house.heard.lock().unwrap().0.iter().filter(|request| request.ask.as_ref().is_some_and(what)).count()
    };
    while asked(|ask| matches!(ask, Ask::Stop(_))) == 0 {
        tokio::task::yield_now().await;
    }
    // By the time of this answer all that came before it was dealt with.
    assert_eq!(client.query::<Vec<JobView>>(&Query::Jobs { limit: 1 }).await.unwrap(), []);
    let waits = follow.waiting.load(Ordering::Relaxed);
    assert!((clerk::MOST_WAITING..clerk::MOST_WAITING + (2 << 20)).contains(&waits), "{waits}");
    let mut heard = Vec::new();
    loop {
        match follow.next().await.unwrap().unwrap() {
            Said::Ended(ended) => heard.push(ended.index),
            Said::JobDone(_) => break,
            _ => {}
        }
    }
    heard.sort_unstable();
    assert_eq!(heard, (0..TASKS).collect::<Vec<_>>());
    assert_eq!(follow.waiting.load(Ordering::Relaxed), 0);
    assert!(asked(|ask| matches!(ask, Ask::Watch(_))) > 1);
    assert_eq!(house.keys().len(), 1, "nothing was submitted again");
}

/// Another coordinator may know a job that is over by its key alone.
#[tokio::test]
async fn whoever_was_cut_off_in_a_pause_submits_again_under_the_same_key() {
    const TASKS: u32 = 24;
    let output = |index: u32| {
        let ending = Ending { stdout: vec![7; 1 << 20].into(), ..Ending::default() };
        Said::Ended(Box::new(Ended { job: 3, index, ending: Some(Box::new(ending)), ..Ended::default() }))
    };
    let house = House::open(move |nth, ask| match (nth, ask) {
        (0, Ask::Submit(_)) => Some([accepted(3, 0)].into_iter().chain((0..TASKS).map(output)).collect()),
        // It goes as soon as it hears that nobody takes more.
        (0, _) => None,
        (_, Ask::Submit(submit)) => {
            let unheard = |index: &u32| submit.heard.partition_point(|turn| turn <= index) % 2 == 0;
            let done = Said::JobDone(Progress { job: 3, ..Progress::default() });
            Some((0..TASKS).filter(unheard).map(output).chain([done]).collect())
        }
        _ => Some(vec![Said::Refused(Refused { why: "unknown".to_owned(), retry_after_nanos: None })]),
    })
    .await;
    let client = house.client().await;
    let array = Array { part: Some(Part::default()), count: TASKS, ..Array::default() };
    let submit = Submit { parts: Some(Parts::Array(array)), ..Submit::default() };
    let (_, mut follow) = client.submit_and_follow(submit).await.unwrap();
    let is_stop = |request: &Request| matches!(request.ask, Some(Ask::Stop(_)));
    while !house.heard.lock().unwrap().0.iter().any(is_stop) {
        tokio::task::yield_now().await;
    }
    // A question is refused by the second coordinator, so by then the first is gone.
    assert!(client.query::<Vec<JobView>>(&Query::Jobs { limit: 1 }).await.is_err());
    let mut heard = Vec::new();
    loop {
        match follow.next().await.unwrap().unwrap() {
            Said::Ended(ended) => heard.push(ended.index),
            Said::JobDone(_) => break,
            _ => {}
        }
    }
    heard.sort_unstable();
    assert_eq!(heard, (0..TASKS).collect::<Vec<_>>());
    let keys = house.keys();
    assert!(keys.len() == 2 && keys[0] == keys[1], "{keys:?}");
}
