//! What a command says, kept up to a limit: its beginning and its end, which are what people look for.
//!
//! Never holds more than the limit and a copy's worth of the end, however much there is.

/// Bytes that were captured from a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    head: Vec<u8>,
    tail: Vec<u8>,
    /// How many bytes there were between the two.
    left_out: u64,
    half: usize,
}

impl Captured {
    /// Nothing so far, and room for this much.
    pub(super) fn with_limit(limit: usize) -> Captured {
        Captured { half: limit.div_ceil(2), ..Captured::default() }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.half - self.head.len()));
        self.head.extend_from_slice(first);
        // What cannot stay is not even copied.
        let skipped = rest.len().saturating_sub(self.half);
        self.tail.extend_from_slice(&rest[skipped..]);
        self.left_out += skipped as u64;
        // Not moved with every byte, but when as much again has come.
        if self.tail.len() > 2 * self.half {
            self.trim();
        }
    }

    /// Leaves of the end what fits.
    pub(super) fn trim(&mut self) {
        let over = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..over);
        self.left_out += over as u64;
    }

    /// Everything that was written, kept or not, in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.head.len() as u64 + self.left_out + self.tail.len() as u64
    }

    /// How many bytes were not kept.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// What was kept, with a notice on a line of its own where something was left out.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        let Captured { head: mut bytes, tail, left_out, .. } = self;
        if left_out > 0 {
            let line = if bytes.is_empty() || bytes.ends_with(b"\n") { "" } else { "\n" };
            bytes.extend_from_slice(format!("{line}[filch: {left_out} bytes left out]\n").as_bytes());
        }
        bytes.extend_from_slice(&tail);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(limit: usize, pieces: &[&[u8]]) -> Captured {
        let mut captured = Captured::with_limit(limit);
        pieces.iter().for_each(|piece| captured.push(piece));
        captured.trim();
        captured
    }

    #[test]
    fn what_fits_is_kept_whole() {
        let captured = capture(10, &[b"01234", b"", b"56789"]);
        assert_eq!((captured.total(), captured.left_out()), (10, 0));
        assert_eq!(captured.into_bytes(), b"0123456789");
    }

    #[test]
    fn of_what_does_not_fit_the_beginning_and_the_end_are_kept() {
        let text: Vec<u8> = (0..100_000_u32).flat_map(|number| format!("{number}\n").into_bytes()).collect();
        for size in [1, 3, 7, 1000, text.len()] {
            let pieces: Vec<&[u8]> = text.chunks(size).collect();
            let captured = capture(20, &pieces);
            assert_eq!(captured.total(), text.len() as u64);
            let (head, tail) = (&text[..10], &text[text.len() - 10..]);
            let notice = format!("[filch: {} bytes left out]\n", text.len() - 20);
            let expected = [head, notice.as_bytes(), tail].concat();
            assert_eq!(captured.into_bytes(), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn without_room_only_the_notice_is_left() {
        assert_eq!(capture(0, &[b"abc"]).into_bytes(), b"[filch: 3 bytes left out]\n");
    }
}
