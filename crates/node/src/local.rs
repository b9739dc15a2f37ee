//! Sockets between workers of one machine: shorter than the way through the network, whose code they do not pass.
//!
//! They have names without a file, so nothing is left behind, and whoever is in another network namespace finds none. The
//! system says whose process is at the other end: somebody else's is refused, so nothing need be encrypted. Whoever finds no
//! such socket, or a stranger's, goes over the network. Never used where the system has no such names.
//!
//! Whoever waits for something to read is woken for nothing else. Such sockets tell their sender of room each time something
//! was read at the other end: who asked to be told of both would be woken there, mostly on the processor of the one that is
//! about to answer. So it is asked for only when there was no room.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

use crate::door::{Reader, Writer, halves};
use crate::watched::watched;

#[cfg(target_os = "linux")]
pub(crate) use linux::{Listener, connect};
#[cfg(not(target_os = "linux"))]
pub(crate) use none::{Listener, connect};

/// The most that is read at once.
const READ: usize = 64 << 10;

/// Both halves of a socket, if its other end is of the user of this process.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "there are no such sockets elsewhere"))]
fn of_own_user(socket: UnixStream) -> io::Result<(Reader, Writer)> {
    if socket.peer_cred()?.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the other end is a process of another user"));
    }
    split(socket)
}

fn split(socket: UnixStream) -> io::Result<(Reader, Writer)> {
    let socket = Arc::new(OwnedFd::from(socket.into_std()?));
    let reading = Reading(watched(Arc::clone(&socket), Interest::READABLE)?);
    Ok(halves((reading, Writing { socket, room: None })))
}

/// The half that is read.
struct Reading(AsyncFd<Arc<OwnedFd>>);

impl AsyncRead for Reading {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(context))?;
            let room = buffer.remaining().min(READ);
            match rustix::io::read(self.0.get_ref(), buffer.initialize_unfilled_to(room)) {
                Ok(count) => {
                    if 0 < count && count < room {
                        // That was all: what comes from now on is told anew.
                        ready.clear_ready();
                    }
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

/// The half that is written.
struct Writing {
    socket: Arc<OwnedFd>,
    /// Tells of room, while there is none. Another descriptor, as one is not waited for twice.
    room: Option<AsyncFd<Arc<OwnedFd>>>,
}

impl AsyncWrite for Writing {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let ready = match &self.room {
                Some(room) => Some(ready!(room.poll_write_ready(context))?),
                None => None,
            };
            match (send(&self.socket, bytes, SendFlags::NOSIGNAL), ready) {
                (Ok(count), _) => {
                    self.room = None;
                    return Poll::Ready(Ok(count));
                }
                (Err(Errno::AGAIN), Some(mut ready)) => ready.clear_ready(),
                (Err(Errno::AGAIN), None) => {
                    self.room = Some(watched(Arc::new(self.socket.try_clone()?), Interest::WRITABLE)?);
                }
                (Err(Errno::INTR), _) => {}
                (Err(error), _) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown(&self.socket, Shutdown::Write).map_err(io::Error::from))
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use tokio::net::{UnixListener, UnixStream};

    use super::{Reader, Writer, io, of_own_user};
    use crate::access::to_hex;
    use crate::secure::new_token;

    /// Where peers of this machine come in.
    pub(crate) struct Listener {
        socket: UnixListener,
        name: String,
    }

    /// What the system calls it.
    fn path(name: &str) -> String {
        format!("\0{name}")
    }

    impl Listener {
        /// One under a name that nobody else has.
        pub(crate) fn open() -> io::Result<Listener> {
            let name = format!("filch-{}", to_hex(&new_token()?));
            Ok(Listener { socket: UnixListener::bind(path(&name))?, name })
        }

        /// By what others find it.
        pub(crate) fn name(&self) -> &str {
            &self.name
        }

        /// The next who comes.
        pub(crate) async fn accept(&self) -> io::Result<(Reader, Writer)> {
            of_own_user(self.socket.accept().await?.0)
        }
    }

    /// Connects to a listener of this machine.
    pub(crate) async fn connect(name: &str) -> io::Result<(Reader, Writer)> {
        of_own_user(UnixStream::connect(path(name)).await?)
    }
}

#[cfg(not(target_os = "linux"))]
mod none {
    use super::{Reader, Writer, io};

    /// Nobody comes in here.
    pub(crate) struct Listener;

    fn unsupported() -> io::Error {
        io::ErrorKind::Unsupported.into()
    }

    impl Listener {
        /// There is none.
        pub(crate) fn open() -> io::Result<Listener> {
            Err(unsupported())
        }

        /// It has none.
        pub(crate) fn name(&self) -> &str {
            ""
        }

        /// Nobody comes.
        pub(crate) async fn accept(&self) -> io::Result<(Reader, Writer)> {
            Err(unsupported())
        }
    }

    /// Finds nobody.
    pub(crate) async fn connect(_: &str) -> io::Result<(Reader, Writer)> {
        Err(unsupported())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn pair() -> [(Reader, Writer); 2] {
        let (one, other) = UnixStream::pair().unwrap();
        [one, other].map(|socket| split(socket).unwrap())
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn who_knows_the_name_gets_in_and_nothing_is_left_behind() {
        let listener = Listener::open().unwrap();
        let name = listener.name().to_owned();
        let (_, mut writer) = connect(&name).await.unwrap();
        let (mut reader, _) = listener.accept().await.unwrap();
        writer.write_all(b"hello").await.unwrap();
        let mut heard = [0; 5];
        reader.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"hello");
        let refused = |outcome: io::Result<(Reader, Writer)>| outcome.map(|_| ()).unwrap_err().kind();
        assert_eq!(refused(connect(&format!("{name}x")).await), io::ErrorKind::ConnectionRefused);
        drop(listener);
        assert_eq!(refused(connect(&name).await), io::ErrorKind::ConnectionRefused);
    }

    /// More than there is room for, to somebody who takes it in small and in large parts, and its end.
    #[tokio::test]
    async fn whoever_finds_no_room_waits_for_it() {
        let [(_reader, mut writer), (mut other, _writer)] = pair();
        let sent: Vec<u8> = (0..3_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let sending = tokio::spawn({
            let sent = sent.clone();
            async move {
                for part in sent.chunks(700_001) {
                    writer.write_all(part).await.unwrap();
                }
                writer.shutdown().await.unwrap();
                // Open still: that there is nothing more was said, not that nobody is there.
                writer
            }
        });
        let mut heard = Vec::new();
        let mut buffer = vec![0; 200_000];
        loop {
            let room = if heard.len() % 2 == 0 { 100 } else { buffer.len() };
            let count = other.read(&mut buffer[..room]).await.unwrap();
            if count == 0 {
                break;
            }
            heard.extend_from_slice(&buffer[..count]);
        }
        assert!(heard == sent, "{} of {} bytes, or others", heard.len(), sent.len());
        drop(sending.await.unwrap());
    }

    #[tokio::test]
    async fn somebody_who_has_gone_is_noticed() {
        let [(mut reader, mut writer), other] = pair();
        drop(other);
        assert_eq!(reader.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(writer.write(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn whoever_waits_for_an_answer_is_not_woken_when_the_question_is_read() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (one, other) = UnixStream::pair().unwrap();
            let (mut reader, mut writer) = split(one).unwrap();
            let mut other = other.into_std().unwrap();
            other.set_nonblocking(false).unwrap();
            writer.write_all(b"question").await.unwrap();
            // What it was told when it began to wait is heard before that.
            tokio::task::yield_now().await;
            let parked = || tokio::runtime::Handle::current().metrics().worker_park_count(0);
            let before = parked();
            let answering = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(50));
                other.read_exact(&mut [0; 8]).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(50));
                other.write_all(b"answer").unwrap();
                other
            });
            assert_eq!(reader.read(&mut [0; 64]).await.unwrap(), 6);
            assert_eq!(parked() - before, 1, "it slept once, until the answer came");
            drop(answering.join());
        });
    }
}
