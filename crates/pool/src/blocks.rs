//! Memory for spawned tasks: a thread places them one after the other into a chunk, which is used again as a whole.
//!
//! A task is often made by one thread and ended by another. General allocators lock or contend for every such task, and
//! their lists of free places lie all over the memory; here tasks lie side by side in the order in which they are made, and
//! only whole chunks change hands. A task that lives long keeps its chunk from being used again. What is kept is bounded;
//! the rest goes back to the allocator. It never looks into a task.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::live::Live;

/// Chunks begin at multiples of this, so that the chunk of a task is found by its address.
const CHUNK: usize = 8192;
/// A little less, so that chunks lie side by side although allocators put a few words between them.
const LAYOUT: Layout = match Layout::from_size_align(CHUNK - 64, CHUNK) {
    Ok(layout) => layout,
    Err(_) => panic!("the alignment is a power of two"),
};
/// Where the tasks begin: the count is on a cache line of its own.
const FIRST: usize = 64;
/// Tasks are placed at multiples of this.
const GRAIN: usize = 16;
/// Larger tasks go to the allocator.
const LARGEST: usize = 512;
/// The most free chunks that a thread keeps for itself.
const MOST_SPARE: usize = 4;
/// The most free chunks that wait for any thread to need them: 64 MB.
const MOST_STORED: usize = 8192;

/// The beginning of a chunk, which is its count of tasks.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Chunk(*mut Live);
// SAFETY: what is done with a chunk is done by whoever holds it or through its count.
unsafe impl Send for Chunk {}

impl Chunk {
    const NONE: Self = Self(std::ptr::null_mut());

    /// The chunk that a task lies in.
    #[inline]
    fn of(place: *mut u8) -> Self {
        Self(place.map_addr(|address| address & !(CHUNK - 1)).cast())
    }

    /// A free chunk, from the store or from the allocator.
    fn new() -> Self {
        if let Some(chunk) = store().pop() {
            return chunk;
        }
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc(LAYOUT) };
        if memory.is_null() {
            handle_alloc_error(LAYOUT);
        }
        Self(memory.cast())
    }

    /// Gives a free chunk to the store, or back to the allocator.
    fn store(self) {
        {
            let mut store = store();
            if store.len() < MOST_STORED {
                return store.push(self);
            }
        }
        // SAFETY: made by `new` with this layout, and free.
        unsafe { dealloc(self.0.cast(), LAYOUT) };
    }

    #[inline]
    fn at(self, offset: usize) -> *mut u8 {
        self.0.cast::<u8>().wrapping_add(offset)
    }
}

static STORE: Mutex<Vec<Chunk>> = Mutex::new(Vec::new());

fn store() -> MutexGuard<'static, Vec<Chunk>> {
    STORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one thread has of all this.
struct Bench {
    /// The chunk that this thread fills, or none.
    open: Chunk,
    /// Where the next task goes, and where the chunk ends.
    next: usize,
    end: usize,
    /// How many tasks were put into the open chunk, and how many of them ended on this thread.
    put: usize,
    ended: usize,
    /// Another chunk of which tasks ended on this thread, and how many its count does not know of yet.
    other: Chunk,
    other_ended: usize,
    spare: Vec<Chunk>,
}

thread_local! {
    static BENCH: UnsafeCell<Bench> = const { UnsafeCell::new(Bench::new()) };
}

impl Bench {
    const fn new() -> Self {
        let (open, other) = (Chunk::NONE, Chunk::NONE);
        Self { open, next: 0, end: 0, put: 0, ended: 0, other, other_ended: 0, spare: Vec::new() }
    }

    #[inline]
    fn take(&mut self, size: usize) -> *mut u8 {
        if self.end - self.next < size {
            self.turn_over();
        }
        let place = self.open.at(self.next);
        self.next += size;
        self.put += 1;
        place
    }

    /// Goes on with a free chunk.
    #[cold]
    #[inline(never)]
    fn turn_over(&mut self) {
        self.close();
        self.open = self.spare.pop().unwrap_or_else(Chunk::new);
        // SAFETY: a free chunk is ours alone.
        unsafe { self.open.0.write(Live::new()) };
        (self.next, self.end) = (FIRST, LAYOUT.size());
    }

    fn close(&mut self) {
        let (chunk, left) = (std::mem::replace(&mut self.open, Chunk::NONE), self.put - self.ended);
        (self.next, self.end, self.put, self.ended) = (0, 0, 0, 0);
        // SAFETY: this thread opened it, and closes it once.
        if chunk != Chunk::NONE && unsafe { Live::close(chunk.0, left) } {
            self.keep(chunk);
        }
    }

    #[inline]
    fn free(&mut self, place: *mut u8) {
        let chunk = Chunk::of(place);
        if chunk == self.open {
            self.ended += 1;
            if self.ended == self.put {
                // All that lay there ended here: begin anew, where the cache is warm.
                (self.next, self.put, self.ended) = (FIRST, 0, 0);
            }
        } else if chunk == self.other {
            self.other_ended += 1;
        } else {
            self.report();
            (self.other, self.other_ended) = (chunk, 1);
        }
    }

    /// Tells the other chunk what its count does not know yet.
    #[inline(never)]
    fn report(&mut self) {
        let (chunk, ended) = (std::mem::replace(&mut self.other, Chunk::NONE), self.other_ended);
        // SAFETY: so many of its tasks ended here since the last report.
        if chunk != Chunk::NONE && unsafe { Live::end(chunk.0, ended) } {
            self.keep(chunk);
        }
    }

    fn keep(&mut self, chunk: Chunk) {
        if self.spare.len() < MOST_SPARE {
            self.spare.push(chunk);
        } else {
            chunk.store();
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.close();
        self.report();
        self.spare.drain(..).for_each(Chunk::store);
    }
}

/// The bytes a value takes in a chunk, or none if it does not go there. Under shuttle all threads are one, and the count of
/// a chunk would outlive the model it belongs to.
#[inline]
const fn place_size(layout: Layout) -> Option<usize> {
    if cfg!(shuttle) || layout.align() > GRAIN || layout.size() > LARGEST || layout.size() == 0 {
        return None;
    }
    Some(layout.size().next_multiple_of(GRAIN))
}

/// Puts a value into a place of its own.
#[inline]
pub(crate) fn put<T>(value: T) -> *mut T {
    let Some(size) = (const { place_size(Layout::new::<T>()) }) else { return Box::into_raw(Box::new(value)) };
    // SAFETY: only this thread gets here, and nothing in `take` calls foreign code or comes back.
    let place = BENCH.try_with(|bench| unsafe { (*bench.get()).take(size) });
    // A thread that is ending has no chunk any more: the value gets one for itself.
    let place = place.unwrap_or_else(|_| Bench::new().take(size)).cast::<T>();
    // SAFETY: fresh memory, large enough and aligned.
    unsafe { place.write(value) };
    place
}

/// Takes the value out and frees its place.
///
/// # Safety
/// The pointer came from `put` and is not used any more.
#[inline]
pub(crate) unsafe fn take_out<T>(place: *mut T) -> T {
    // SAFETY: the caller's promise.
    unsafe {
        if const { place_size(Layout::new::<T>()) }.is_none() {
            return *Box::from_raw(place);
        }
        let value = place.read();
        let freed = BENCH.try_with(|bench| (*bench.get()).free(place.cast()));
        if freed.is_err() {
            Bench::new().free(place.cast());
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, put, take_out};

    /// How many chunks are filled. An interpreter has less time.
    const CHUNKS: usize = if cfg!(miri) { 1 } else { 3 };

    /// Several chunks full of values of every size, made here and taken out there and the other way round.
    #[test]
    fn values_survive_their_way_through_the_chunks() {
        fn round<T: Copy + PartialEq + Send + 'static>(value: impl Fn(usize) -> T) {
            struct Block<T>(*mut T);
            // SAFETY: the value is Send and has one owner.
            unsafe impl<T: Send> Send for Block<T> {}
            for _ in 0..CHUNKS {
                let blocks: Vec<_> =
                    (0..(CHUNKS + 1) * CHUNK / size_of::<T>()).map(|index| Block(put(value(index)))).collect();
                let back = std::thread::spawn(move || {
                    // SAFETY: each was made by `put` and is taken out once.
                    blocks.into_iter().map(|block| unsafe { take_out(block.0) }).collect::<Vec<T>>()
                });
                let back = back.join().unwrap_or_default();
                assert!(!back.is_empty());
                assert!(back.into_iter().enumerate().all(|(index, found)| found == value(index)));
            }
        }
        round(|index| index);
        round(|index| [index; 8]);
        round(|index| [index; 16]);
        round(|index| [index; 80]);
    }

    /// Taken out in another order than put in, some of them in between, all on one thread: no two values share a place.
    #[test]
    fn no_two_values_share_a_place() {
        let mut kept = Vec::new();
        for index in 0..CHUNKS * CHUNK / 2 {
            kept.push((index, put(index)));
            if index % 3 > 0 {
                let (expected, place) = kept.swap_remove(index * 7 % kept.len());
                // SAFETY: made by `put`, and taken out once.
                assert_eq!(unsafe { take_out(place) }, expected);
            }
        }
        // SAFETY: as above.
        assert!(kept.into_iter().all(|(expected, place)| unsafe { take_out(place) } == expected));
    }
}
