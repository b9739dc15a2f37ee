//! Connections: parcels go out in order, and come in where whoever owns them waits for everything.
//!
//! Over a socket a parcel is a length and a [`Packet`]; within a process it is handed over as it is. A connection that
//! sends nonsense, or too much, or whose other side takes nothing, is closed. Never answers anything itself.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use filch_core::wire::talk::{Ending, LARGEST_PACKET, Packet, Reply, Said};
use filch_core::wire::{Frame, Message};
use prost::Message as _;
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

    /// All of it as a packet.
    pub(crate) fn into_packet(mut self) -> Packet {
        if !self.messages.is_empty() {
            self.packet.frame = Frame { epoch: self.epoch, messages: self.messages }.encode().into();
        }
        self.packet
    }

    fn encode_into(self, buffer: &mut BytesMut) {
        let packet = self.into_packet();
        let length = packet.encoded_len();
        buffer.reserve(length + 4);
        buffer.put_u32_le(length as u32);
        // There is room for all of it.
        let _ = packet.encode(buffer);
    }

    pub(crate) fn decode(bytes: Bytes) -> io::Result<Parcel> {
        let garbled = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut packet = Packet::decode(bytes).map_err(|error| garbled(error.to_string()))?;
        let frame = std::mem::take(&mut packet.frame);
        if frame.is_empty() {
            return Ok(Parcel { packet, ..Parcel::default() });
        }
        let Frame { epoch, messages } = Frame::decode(&frame).map_err(|error| garbled(error.to_string()))?;
        Ok(Parcel { epoch, messages, packet, room: None })
    }
}

/// About how many bytes there are to say of the end of an attempt.
pub(crate) fn weight_of_ending(ending: &Ending) -> usize {
    64 + ending.stdout.len() + ending.stderr.len() + ending.result.len() + ending.error.len()
}

/// About how many bytes a reply has.
pub(crate) fn weight_of_reply(reply: &Reply) -> usize {
    let said = match &reply.said {
        Some(Said::Ended(ended)) => ended.ending.as_deref().map_or(0, weight_of_ending),
        Some(Said::Json(text)) => text.len(),
        Some(Said::Output(chunk)) => chunk.bytes.len(),
        _ => 0,
    };
    256 + said
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
        queue: mpsc::UnboundedSender<Parcel>,
        waiting: Arc<AtomicUsize>,
    },
    /// Closes the other side when it goes.
    Near(Arc<Near>),
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
    pub fn send(&self, parcel: Parcel) -> bool {
        match &self.0 {
            Way::Near(near) => (near.0)(Arrival::Parcel(Box::new(parcel))),
            Way::Socket { queue, waiting } => {
                let weight = parcel.weight();
                if waiting.fetch_add(weight, Ordering::Relaxed) > MOST_WAITING {
                    return false;
                }
                queue.send(parcel).is_ok()
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
    let waiting = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&waiting);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        write_all(writer, out, &counter).await;
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
    Outgoing(Way::Socket { queue, waiting })
}

async fn write_all<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut out: mpsc::UnboundedReceiver<Parcel>,
    waiting: &AtomicUsize,
) {
    let mut buffer = BytesMut::new();
    while let Some(parcel) = out.recv().await {
        let mut weight = parcel.weight();
        parcel.encode_into(&mut buffer);
        while buffer.len() < WRITE
            && let Ok(parcel) = out.try_recv()
        {
            weight += parcel.weight();
            parcel.encode_into(&mut buffer);
        }
        if writer.write_all_buf(&mut buffer).await.is_err() || writer.flush().await.is_err() {
            return;
        }
        waiting.fetch_sub(weight, Ordering::Relaxed);
        if buffer.capacity() > 4 * WRITE {
            buffer = BytesMut::new();
        }
    }
    let _ = writer.shutdown().await;
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
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return "cut off by the other side".to_owned();
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::InvalidData {
                    tracing::warn!(%error, "a connection is closed because of what came");
                }
                return error.to_string();
            }
        };
        parcel.room = Arc::clone(&room).acquire_owned().await.ok();
        if !deliver(Arrival::Parcel(Box::new(parcel))) {
            return "closed here".to_owned();
        }
    }
}

/// Reads one parcel of at most `largest` bytes; none if the connection ended before it.
pub(crate) async fn read_parcel<R: AsyncRead + Unpin>(
    reader: &mut R,
    buffer: &mut BytesMut,
    largest: usize,
) -> io::Result<Option<Parcel>> {
    let cut_off = || io::Error::new(io::ErrorKind::UnexpectedEof, "cut off in the middle of a packet");
    while buffer.len() < 4 {
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
pub(crate) async fn write_parcel<W: AsyncWrite + Unpin>(writer: &mut W, parcel: Parcel) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    parcel.encode_into(&mut buffer);
    writer.write_all_buf(&mut buffer).await?;
    writer.flush().await
}
