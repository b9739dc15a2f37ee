//! The door with real sockets.

use std::sync::mpsc;

use filch_core::wire::talk::{ClientCard, Role};
use tokio::net::TcpListener;

use super::*;
use crate::access::Access;
use crate::dial::{Dial, DialError};
use crate::link::{Arrival, attach};

const TOKEN: Bytes = Bytes::from_static(b"the secret");

fn me() -> Role {
    Role::Client(ClientCard { name: "me".to_owned() })
}

/// A door behind a listener: whoever is let in gets an answer, and back what it says.
struct House {
    access: Access,
    turned: tokio::sync::mpsc::UnboundedReceiver<Turned>,
}

async fn house(mut door: Door, patience: Duration) -> House {
    door.patience = patience;
    let pin = door.identity.as_ref().map(Identity::pin);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = vec![listener.local_addr().unwrap().to_string()];
    let (told, turned) = tokio::sync::mpsc::unbounded_channel();
    let door = Arc::new(door);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (door, told) = (Arc::clone(&door), told.clone());
            tokio::spawn(async move {
                match door.admit(socket).await {
                    Ok(admitted) => echo(admitted).await,
                    Err(why) => drop(told.send(why)),
                }
            });
        }
    });
    House { access: Access { addresses, pin, token: TOKEN }, turned }
}

async fn echo(admitted: Admitted) {
    assert_eq!(admitted.opening.role, Some(me()));
    let answer = Answer { version: VERSION, epoch: 7, ..Answer::default() };
    let (reader, writer, rest) = admitted.answer(answer).await.unwrap();
    let (send, receive) = mpsc::channel();
    let out = attach(reader, writer, rest, move |arrival| send.send(arrival).is_ok());
    std::thread::spawn(move || {
        while let Ok(Arrival::Parcel(parcel)) = receive.recv() {
            out.send(*parcel);
        }
    });
}

async fn plain() -> House {
    house(Door::new(None, TOKEN), PATIENCE).await
}

async fn encrypted() -> House {
    house(Door::new(Some(Identity::generate().unwrap()), TOKEN), PATIENCE).await
}

/// Whether the house lets in whoever knows the secret, and hears it.
async fn serves(access: &Access) {
    let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
    let dial = Dial::Socket(access.clone());
    let (answer, out) = dial.connect(me(), move |arrival| send.send(arrival).is_ok()).await.unwrap();
    assert_eq!(answer.epoch, 7);
    assert!(out.send(Parcel::of(Packet { forget: vec![1, 2, 3], ..Packet::default() })));
    let Some(Arrival::Parcel(parcel)) = receive.recv().await else { panic!("nothing came back") };
    assert_eq!(parcel.packet.forget, [1, 2, 3]);
}

async fn refused(access: Access) -> DialError {
    Dial::Socket(access).connect(me(), |_| true).await.unwrap_err()
}

/// What somebody hears who sends these bytes and nothing else, until the connection is closed.
async fn hears(access: &Access, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(&access.addresses[0]).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    let mut heard = Vec::new();
    // Being cut off is an answer too.
    let _ = timeout(Duration::from_secs(20), socket.read_to_end(&mut heard)).await.expect("it is closed");
    heard
}

#[tokio::test]
async fn who_knows_the_secret_is_let_in() {
    serves(&plain().await.access).await;
    serves(&encrypted().await.access).await;
}

#[tokio::test]
async fn a_wrong_token_is_refused_in_words() {
    for mut house in [plain().await, encrypted().await] {
        let wrong = Access { token: Bytes::from_static(b"a guess"), ..house.access.clone() };
        let error = refused(wrong).await;
        assert!(matches!(&error, DialError::Refused(why) if why.contains("token is wrong")), "{error:?}");
        assert!(matches!(house.turned.recv().await, Some(Turned::Token)));
        serves(&house.access).await;
    }
}

#[tokio::test]
async fn another_version_is_refused_and_both_are_named() {
    let mut house = plain().await;
    let opening = Opening { version: 99, token: TOKEN, role: Some(me()) };
    let packet = Packet { opening: Some(Box::new(opening)), ..Packet::default() };
    let mut socket = TcpStream::connect(&house.access.addresses[0]).await.unwrap();
    write_parcel(&mut socket, Parcel::of(packet)).await.unwrap();
    let heard = read_parcel(&mut socket, &mut BytesMut::new(), 1 << 20).await.unwrap().unwrap();
    let answer = heard.packet.answer.unwrap();
    assert!(
        answer.refused.contains("version 99") && answer.refused.contains(&format!("version {VERSION}")),
        "{}",
        answer.refused
    );
    assert!(matches!(house.turned.recv().await, Some(Turned::Version { theirs: 99 })));
    serves(&house.access).await;
}

#[tokio::test]
async fn nonsense_and_too_much_are_refused() {
    let mut house = plain().await;
    let garbage = [&20_u32.to_le_bytes()[..], &[0xff; 20]].concat();
    let too_much = [&(LARGEST_OPENING as u32 + 1).to_le_bytes()[..], &[0; 100]].concat();
    let nobody = 0_u32.to_le_bytes();
    for bytes in [garbage.as_slice(), &too_much, &nobody, b"GET / HTTP/1.1\r\n\r\n"] {
        assert!(hears(&house.access, bytes).await.is_empty());
        let turned = house.turned.recv().await.unwrap();
        assert!(matches!(turned, Turned::Garbled(_)), "{turned:?}");
    }
    serves(&house.access).await;
}

#[tokio::test]
async fn who_says_nothing_or_too_slowly_is_turned_away() {
    for identity in [None, Some(Identity::generate().unwrap())] {
        let mut house = house(Door::new(identity, TOKEN), Duration::from_millis(300)).await;
        let mut socket = TcpStream::connect(&house.access.addresses[0]).await.unwrap();
        // A byte now and then is no excuse.
        let dripping = async {
            loop {
                if socket.write_all(&[0x16]).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = dripping => panic!("it was cut off without being told of"),
            turned = house.turned.recv() => assert!(
                matches!(turned, Some(Turned::Slow | Turned::Garbled(_) | Turned::Tls(_))), "{turned:?}"
            ),
        }
    }
}

#[tokio::test]
async fn so_many_stand_in_the_door_and_no_more() {
    let mut door = Door::new(None, TOKEN);
    door.room = Arc::new(Semaphore::new(1));
    let mut house = house(door, PATIENCE).await;
    let first = TcpStream::connect(&house.access.addresses[0]).await.unwrap();
    // The second one is turned away once the first stands there.
    loop {
        let second = Access { token: Bytes::from_static(b"a guess"), ..house.access.clone() };
        drop(refused(second).await);
        if matches!(house.turned.recv().await, Some(Turned::Crowded)) {
            break;
        }
    }
    drop(first);
    assert!(matches!(house.turned.recv().await, Some(Turned::Garbled(_))));
    serves(&house.access).await;
}

#[tokio::test]
async fn another_certificate_is_not_trusted() {
    let mut house = encrypted().await;
    let error = refused(Access { pin: Some([1; 32]), ..house.access.clone() }).await;
    assert!(matches!(&error, DialError::Refused(why) if why.contains("another certificate")), "{error:?}");
    assert!(matches!(house.turned.recv().await, Some(Turned::Tls(_) | Turned::Garbled(_))));
    serves(&house.access).await;
}

#[tokio::test]
async fn plain_and_encrypted_do_not_understand_each_other() {
    let mut encrypted = encrypted().await;
    let error = refused(Access { pin: None, ..encrypted.access.clone() }).await;
    assert!(matches!(&error, DialError::Again(why) if why.contains("does it want TLS")), "{error:?}");
    assert!(matches!(encrypted.turned.recv().await, Some(Turned::Tls(_))));
    serves(&encrypted.access).await;
    let mut plain = plain().await;
    let error = refused(Access { pin: Some([1; 32]), ..plain.access.clone() }).await;
    assert!(matches!(&error, DialError::Again(why) if why.contains("does it serve without TLS?")), "{error:?}");
    assert!(matches!(plain.turned.recv().await, Some(Turned::Garbled(_))));
    serves(&plain.access).await;
}

#[tokio::test]
async fn where_nobody_is_another_try_makes_sense() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = listener.local_addr().unwrap().to_string();
    drop(listener);
    let house = plain().await;
    let error = refused(Access { addresses: vec![nobody.clone()], ..house.access.clone() }).await;
    assert!(matches!(&error, DialError::Again(why) if why.contains(&nobody)), "{error:?}");
    // The first that answers is taken.
    let addresses = vec![nobody, house.access.addresses[0].clone()];
    serves(&Access { addresses, ..house.access.clone() }).await;
}
