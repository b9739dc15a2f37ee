//! Connects to a coordinator, over the network or within the same process, and to peers.
//!
//! Tells what is worth another try from what is not: a wrong secret stays wrong. Never tries again by itself.

use std::future::Future;
use std::io;
use std::pin::Pin as Pinned;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use filch_core::wire::VERSION;
use filch_core::wire::talk::{Answer, Opening, Packet, Peer, Role};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::access::{Access, Pin};
use crate::door::{Reader, SILENCE, SILENCE_OF_PEERS, Writer, halves, prepare};
use crate::link::{Arrival, Outgoing, Parcel, attach, is_farewell, read_parcel, write_parcel};
use crate::{local, secure};

/// How long the other side may take.
#[derive(Clone, Copy)]
struct Patience {
    /// To let somebody in.
    opening: Duration,
    /// To confirm what it was sent.
    silence: Duration,
}

const PATIENCE: Patience = Patience { opening: Duration::from_secs(10), silence: SILENCE };
const PATIENCE_WITH_PEERS: Patience = Patience { opening: Duration::from_secs(2), silence: SILENCE_OF_PEERS };
/// The most that an answer may weigh; the configuration is in it.
const LARGEST_ANSWER: usize = 4 << 20;

/// Where what comes goes; says whether anybody still wants it.
pub type Deliver = Box<dyn Fn(Arrival) -> bool + Send + Sync>;

/// What somebody in the same process answers, and the way to it.
pub type Entered = Pinned<Box<dyn Future<Output = Result<(Answer, Outgoing), String>> + Send>>;

/// Somebody in the same process who can be connected to.
pub trait Doorway: Send + Sync {
    /// Connects. What it says goes to `deliver`. An error is worth another try, an answer that refuses is not.
    fn enter(&self, opening: Opening, deliver: Deliver) -> Entered;
}

/// How to reach a coordinator.
#[derive(Clone)]
pub enum Dial {
    /// Over the network.
    Socket(Access),
    /// In this process.
    Near(Arc<dyn Doorway>),
}

impl std::fmt::Display for Dial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Dial::Socket(access) => f.write_str(&access.addresses.join(", ")),
            Dial::Near(_) => f.write_str("in this process"),
        }
    }
}

impl std::fmt::Debug for Dial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Dial::Socket(access) => f.debug_tuple("Socket").field(access).finish(),
            Dial::Near(_) => f.write_str("Near"),
        }
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// It was refused, and would be again.
    #[error("{0}")]
    Refused(String),
    /// It may be different later.
    #[error("{0}")]
    Again(String),
}

impl Dial {
    /// Connects. What comes goes to `deliver`, which says whether anybody still wants it.
    ///
    /// # Errors
    /// If that does not succeed.
    pub async fn connect(
        &self,
        role: Role,
        deliver: impl Fn(Arrival) -> bool + Send + Sync + 'static,
    ) -> Result<(Answer, Outgoing), DialError> {
        let opening = |token| Opening { version: VERSION, token, role: Some(role) };
        match self {
            Dial::Near(doorway) => {
                let entered = doorway.enter(opening(Bytes::new()), Box::new(deliver)).await;
                let (answer, out) = entered.map_err(DialError::Again)?;
                checked(&answer)?;
                Ok((answer, out))
            }
            Dial::Socket(access) => {
                let opening = opening(access.token.clone());
                let (reader, writer, rest, answer) = knock_at_any(access, &opening).await?;
                Ok((answer, attach(reader, writer, rest, deliver)))
            }
        }
    }
}

type Opened = (Reader, Writer, BytesMut, Answer);

async fn knock_at_any(access: &Access, opening: &Opening) -> Result<Opened, DialError> {
    let mut last = DialError::Again("there is no address to connect to".to_owned());
    for address in &access.addresses {
        match open(address, access.pin, opening, PATIENCE).await {
            Err(error @ DialError::Refused(_)) => return Err(error),
            Err(error) => last = error,
            Ok(opened) => return Ok(opened),
        }
    }
    Err(last)
}

/// Connects to a peer, as the worker with the id `own`.
///
/// # Errors
/// If it cannot be reached soon, or refuses.
pub async fn knock(
    peer: &Peer,
    own: u64,
    deliver: impl Fn(Arrival) -> bool + Send + Sync + 'static,
) -> Result<Outgoing, DialError> {
    let pin = match peer.pin.len() {
        0 => None,
        _ => Some(Pin::try_from(&*peer.pin).map_err(|_| DialError::Refused("its pin is no SHA-256".to_owned()))?),
    };
    let opening = Opening { version: VERSION, token: peer.token.clone(), role: Some(Role::Peer(own)) };
    let (reader, writer, rest, _) = match local_way(&peer.local).await {
        Some(socket) => {
            let speaking = introduce(socket, &peer.local, &opening, "");
            timely(&peer.local, PATIENCE_WITH_PEERS.opening, speaking).await?
        }
        None => open(&peer.address, pin, &opening, PATIENCE_WITH_PEERS).await?,
    };
    Ok(attach(reader, writer, rest, deliver))
}

/// The way to a peer of this machine, if it is one.
async fn local_way(name: &str) -> Option<(Reader, Writer)> {
    if name.is_empty() {
        return None;
    }
    match local::connect(name).await {
        Ok(halves) => Some(halves),
        Err(error) => {
            tracing::debug!(name, %error, "no way within this machine");
            None
        }
    }
}

async fn open(address: &str, pin: Option<Pin>, opening: &Opening, patience: Patience) -> Result<Opened, DialError> {
    timely(address, patience.opening, speak(address, pin, opening, patience.silence)).await
}

async fn timely(
    address: &str,
    within: Duration,
    speaking: impl Future<Output = Result<Opened, DialError>>,
) -> Result<Opened, DialError> {
    let slow = |_| DialError::Again(format!("{address} did not answer within {} s", within.as_secs()));
    timeout(within, speaking).await.map_err(slow)?
}

async fn speak(address: &str, pin: Option<Pin>, opening: &Opening, silence: Duration) -> Result<Opened, DialError> {
    let again = |error: io::Error| DialError::Again(format!("cannot connect to {address}: {error}"));
    let socket = TcpStream::connect(address).await.map_err(again)?;
    prepare(&socket, silence).map_err(again)?;
    let connection = match pin {
        None => halves(socket.into_split()),
        Some(pin) => {
            let stream = secure::connect(socket, pin).await.map_err(|error| {
                if secure::is_other_certificate(&error) {
                    return DialError::Refused(format!(
                        "{address} has another certificate than the access file says: copy the access file again from \
                         where `filch serve` runs"
                    ));
                }
                DialError::Again(format!("no TLS with {address}: {error}; does it serve without TLS?"))
            })?;
            halves(tokio::io::split(stream))
        }
    };
    let hint = if pin.is_none() { "; does it want TLS, or is it no filch at all?" } else { "" };
    introduce(connection, address, opening, hint).await
}

/// Says who is there and hears the answer. `hint` is what else may be wrong if there is none.
async fn introduce(
    (mut reader, mut writer): (Reader, Writer),
    address: &str,
    opening: &Opening,
    hint: &str,
) -> Result<Opened, DialError> {
    let again = |error: io::Error| DialError::Again(format!("cannot connect to {address}: {error}"));
    let packet = Packet { opening: Some(Box::new(opening.clone())), ..Packet::default() };
    write_parcel(&mut writer, Parcel::of(packet)).await.map_err(again)?;
    let mut rest = BytesMut::new();
    let who = if matches!(opening.role, Some(Role::Peer(_))) { "peer" } else { "coordinator" };
    let closed = || DialError::Again(format!("the {who} at {address} closed the connection{hint}"));
    let parcel = read_parcel(&mut reader, &mut rest, LARGEST_ANSWER).await.map_err(|error| {
        if is_farewell(&error) {
            return closed();
        }
        DialError::Again(format!("{address} does not answer as it should: {error}{hint}"))
    })?;
    let answer = parcel.and_then(|parcel| parcel.packet.answer).ok_or_else(closed)?;
    checked(&answer)?;
    Ok((reader, writer, rest, *answer))
}

fn checked(answer: &Answer) -> Result<(), DialError> {
    if !answer.refused.is_empty() {
        return Err(DialError::Refused(answer.refused.clone()));
    }
    if answer.version != VERSION {
        let theirs = answer.version;
        return Err(DialError::Refused(format!(
            "the other side speaks version {theirs} of the protocol and this filch version {VERSION}: install the same \
             filch on both"
        )));
    }
    Ok(())
}

/// Pauses between tries: each about twice as long as the one before, up to a limit, and never quite the same.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first.
    pub first: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(5) }
    }
}

impl Backoff {
    /// The pause after so many failures.
    #[must_use]
    pub fn pause(&self, failures: u32) -> Duration {
        let whole = self.first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(self.longest);
        // From half of it to all of it: those who lost the same coordinator do not all come back at once.
        whole.mul_f64(0.5 + 0.5 * fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A coordinator that dies says no farewell, and what TLS thinks of that helps nobody.
    #[tokio::test]
    async fn whoever_is_cut_off_hears_that_the_coordinator_closed_the_connection() {
        let identity = secure::Identity::generate().unwrap();
        let pin = identity.pin();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let mut stream = identity.acceptor().accept(socket).await.unwrap();
                // All that was said is read, so that the end is one and no reset.
                let _ = read_parcel(&mut stream, &mut BytesMut::new(), LARGEST_ANSWER).await;
            }
        });
        let access = Access { addresses: vec![address.clone()], pin: Some(pin), token: Bytes::new() };
        let card = filch_core::wire::talk::ClientCard { name: "me".to_owned() };
        let refused = Dial::Socket(access).connect(Role::Client(card), |_| true).await.map(|_| ()).unwrap_err();
        let expected = format!("the coordinator at {address} closed the connection");
        assert_eq!(refused, DialError::Again(expected));
    }

    #[test]
    fn pauses_grow_and_differ() {
        let backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(1) };
        for (failures, most) in [(1, 100), (2, 200), (3, 400), (5, 1000), (4_000_000_000, 1000)] {
            let pause = backoff.pause(failures);
            let most = Duration::from_millis(most);
            assert!(pause <= most && pause >= most / 2, "{pause:?} after {failures}");
        }
    }
}
