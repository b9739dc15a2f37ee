//! The door of a listener: whoever comes must say who it is and know the secret, soon and in few bytes.
//!
//! Coordinators have one for workers and clients, workers have one for their peers. Whoever speaks another version, does
//! not know the secret, says nonsense, too much or nothing is turned away; whoever can understand it hears why. So many may
//! stand in the door at once, and no more. Never looks at what somebody wants once it is in.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use filch_core::wire::VERSION;
use filch_core::wire::talk::{Answer, Opening, Packet};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::link::{Parcel, read_parcel, write_parcel};
use crate::secure::{Identity, same_secret};

/// How long somebody may stand in the door.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most that somebody may say there.
const LARGEST_OPENING: usize = 64 << 10;
/// How many may stand there at once.
const AT_ONCE: usize = 1024;
/// How long one that is turned away may take to hear why.
const FAREWELL: Duration = Duration::from_millis(500);

/// How long something that was sent may stay unconfirmed; then whoever it was for counts as gone.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);
/// The same between peers. Short, as they have another way to each other.
pub(crate) const SILENCE_OF_PEERS: Duration = Duration::from_secs(4);

/// The half of a connection that is read.
pub type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// The half of a connection that is written.
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Both halves of a connection, whatever kind it is.
pub(crate) fn halves<R, W>((reader, writer): (R, W)) -> (Reader, Writer)
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    (Box::new(reader), Box::new(writer))
}

/// A door.
pub struct Door {
    identity: Option<Identity>,
    token: Bytes,
    room: Arc<Semaphore>,
    patience: Duration,
    silence: Duration,
}

/// Somebody who was let in and waits for an answer.
pub struct Admitted {
    /// What it said of itself.
    pub opening: Opening,
    /// What it says.
    pub reader: Reader,
    /// What it hears.
    pub writer: Writer,
    /// What it said already beyond that.
    pub rest: BytesMut,
}

/// Why somebody was turned away.
#[derive(Debug, thiserror::Error)]
pub enum Turned {
    /// Too many stand in the door.
    #[error("too many connect at once")]
    Crowded,
    /// It did not say who it is in time.
    #[error("did not say who it is within {} s", PATIENCE.as_secs())]
    Slow,
    /// It does not speak TLS, or not like this.
    #[error("no TLS: {0}")]
    Tls(io::Error),
    /// It said nonsense or too much, or went away.
    #[error("no opening: {0}")]
    Garbled(io::Error),
    /// It speaks another version.
    #[error("speaks version {theirs} and not {VERSION}")]
    Version {
        /// Which.
        theirs: u32,
    },
    /// It does not know the secret.
    #[error("does not know the secret")]
    Token,
}

impl Door {
    /// A door that is opened with a token; with an identity, everything is encrypted.
    #[must_use]
    pub fn new(identity: Option<Identity>, token: Bytes) -> Door {
        Door { identity, token, room: Arc::new(Semaphore::new(AT_ONCE)), patience: PATIENCE, silence: SILENCE }
    }

    /// The door of a worker, for its peers.
    #[must_use]
    pub(crate) fn for_peers(identity: Option<Identity>, token: Bytes) -> Door {
        Door { silence: SILENCE_OF_PEERS, ..Door::new(identity, token) }
    }

    /// Lets somebody in, or not. Takes [`Answer`]s from whoever asked for this; see [`Admitted::answer`].
    ///
    /// # Errors
    /// If it was turned away.
    pub async fn admit(&self, socket: TcpStream) -> Result<Admitted, Turned> {
        let _standing = self.room.try_acquire().map_err(|_| Turned::Crowded)?;
        let greeting = async {
            prepare(&socket, self.silence).map_err(Turned::Garbled)?;
            let (reader, writer): (Reader, Writer) = match &self.identity {
                None => halves(socket.into_split()),
                Some(identity) => {
                    let stream = identity.acceptor().accept(socket).await.map_err(Turned::Tls)?;
                    halves(tokio::io::split(stream))
                }
            };
            self.greet(reader, writer).await
        };
        timeout(self.patience, greeting).await.map_err(|_| Turned::Slow)?
    }

    /// The same for a process of the same user of this machine: nobody else hears what is said.
    pub(crate) async fn admit_local(&self, (reader, writer): (Reader, Writer)) -> Result<Admitted, Turned> {
        let _standing = self.room.try_acquire().map_err(|_| Turned::Crowded)?;
        timeout(self.patience, self.greet(reader, writer)).await.map_err(|_| Turned::Slow)?
    }

    async fn greet(&self, mut reader: Reader, writer: Writer) -> Result<Admitted, Turned> {
        let mut rest = BytesMut::new();
        let parcel = read_parcel(&mut reader, &mut rest, LARGEST_OPENING).await.map_err(Turned::Garbled)?;
        let missing = || Turned::Garbled(io::Error::new(io::ErrorKind::UnexpectedEof, "it said nothing"));
        let opening = parcel.and_then(|parcel| parcel.packet.opening).ok_or_else(missing)?;
        let admitted = Admitted { opening: *opening, reader, writer, rest };
        let turned = match self.check(&admitted.opening) {
            None => return Ok(admitted),
            Some(turned) => turned,
        };
        admitted.turn_away(&turned).await;
        Err(turned)
    }

    fn check(&self, opening: &Opening) -> Option<Turned> {
        if opening.version != VERSION {
            return Some(Turned::Version { theirs: opening.version });
        }
        (!same_secret(&opening.token, &self.token)).then_some(Turned::Token)
    }
}

impl Admitted {
    /// Answers; what is left is the connection.
    ///
    /// # Errors
    /// If it has gone away, or does not listen.
    pub async fn answer(mut self, answer: Answer) -> io::Result<(Reader, Writer, BytesMut)> {
        let written = timeout(PATIENCE, write_parcel(&mut self.writer, parcel_of(answer))).await;
        written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok((self.reader, self.writer, self.rest))
    }

    async fn turn_away(self, turned: &Turned) {
        let refused = match turned {
            Turned::Version { theirs } => format!(
                "this filch speaks version {VERSION} of the protocol and the other side version {theirs}: install the \
                 same filch on both"
            ),
            _ => "the token is wrong: copy the access file again from where `filch serve` runs".to_owned(),
        };
        let answer = Answer { version: VERSION, refused, ..Answer::default() };
        // Whoever is turned away may go without listening.
        let _ = timeout(FAREWELL, self.say_farewell(answer)).await;
    }

    /// Answers and waits until the other side has gone: a connection that is closed with something unread is cut off
    /// before the answer has arrived.
    async fn say_farewell(mut self, answer: Answer) -> io::Result<()> {
        write_parcel(&mut self.writer, parcel_of(answer)).await?;
        self.writer.shutdown().await?;
        let mut unread = [0; 4096];
        while self.reader.read(&mut unread).await? > 0 {}
        Ok(())
    }
}

fn parcel_of(answer: Answer) -> Parcel {
    Parcel::of(Packet { answer: Some(Box::new(answer)), ..Packet::default() })
}

/// Lets this process have as many connections as the system permits at all: what is permitted at first is often less than
/// the workers of a large cluster. Not for those who start other programs, which may not bear so many.
pub fn permit_many() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the number of open files cannot be raised");
    }
}

/// Small packets go out at once, and a connection whose other side has vanished is noticed: after `silence` if something was
/// sent, after about half a minute if nothing was.
pub(crate) fn prepare(socket: &TcpStream, silence: Duration) -> io::Result<()> {
    socket.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_keepalive(socket, true)?;
    rustix::net::sockopt::set_tcp_keepidle(socket, Duration::from_secs(15))?;
    rustix::net::sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5))?;
    rustix::net::sockopt::set_tcp_keepcnt(socket, 3)?;
    // Elsewhere it takes as long as the system thinks right.
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(socket, silence.as_millis() as u32)?;
    #[cfg(not(target_os = "linux"))]
    let _ = silence;
    Ok(())
}

#[cfg(test)]
mod tests;
