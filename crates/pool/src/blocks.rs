//! Memory for spawned tasks: blocks of a few sizes, kept by each thread for its next tasks and exchanged in bundles.
//!
//! A task is often made by one thread and ended by another. General allocators lock or contend for every such block;
//! here 64 of them change hands under one lock. What is kept is bounded; the rest goes back to the allocator. It never
//! looks into a block that is in use.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::sync::prefetch;

/// The sizes of blocks, each a power of two. Larger tasks go to the allocator.
const SIZES: [usize; 3] = [32, 64, 128];
/// How many blocks change hands at once.
const BUNDLE: usize = 64;
/// The most bundles of one size that wait for a thread to need them: a million blocks.
const MOST_BUNDLES: usize = 1 << 14;

/// Free blocks of one size. Their addresses lie side by side, so that taking one need not wait for the memory of the one
/// before, as it would if they were linked.
type List = Vec<Block>;

/// A block that is not in use.
struct Block(*mut u8);
// SAFETY: a free block belongs to whoever holds it.
unsafe impl Send for Block {}

/// What one thread keeps of one size: at most two bundles, so that a thread at the edge of one does not come back for
/// every block.
struct Shelf {
    open: List,
    full: List,
}

static STORE: [Mutex<Vec<List>>; SIZES.len()] = [const { Mutex::new(Vec::new()) }; SIZES.len()];

fn store(class: usize) -> MutexGuard<'static, Vec<List>> {
    STORE[class].lock().unwrap_or_else(PoisonError::into_inner)
}

struct Shelves([Shelf; SIZES.len()]);

impl Drop for Shelves {
    fn drop(&mut self) {
        for (size, shelf) in SIZES.into_iter().zip(&mut self.0) {
            give_back(&mut shelf.open, size);
            give_back(&mut shelf.full, size);
        }
    }
}

thread_local! {
    static SHELVES: UnsafeCell<Shelves> =
        const { UnsafeCell::new(Shelves([const { Shelf { open: Vec::new(), full: Vec::new() } }; SIZES.len()])) };
}

/// Which size a layout takes, if any.
#[inline]
const fn class(layout: Layout) -> Option<usize> {
    if layout.align() > 16 {
        return None;
    }
    match layout.size() {
        0..=32 => Some(0),
        33..=64 => Some(1),
        65..=128 => Some(2),
        _ => None,
    }
}

const fn block_layout(size: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and the sizes are small.
    unsafe { Layout::from_size_align_unchecked(size, 16) }
}

fn allocate(layout: Layout) -> *mut u8 {
    // SAFETY: no layout used here is empty.
    let block = unsafe { alloc(layout) };
    if block.is_null() {
        handle_alloc_error(layout);
    }
    block
}

fn give_back(list: &mut List, size: usize) {
    for block in list.drain(..) {
        // SAFETY: made by `allocate` with this layout, and free.
        unsafe { dealloc(block.0, block_layout(size)) };
    }
}

/// Puts a value into a block.
#[inline]
pub(crate) fn put<T>(value: T) -> *mut T {
    let layout = const { Layout::new::<T>() };
    let block = match const { class(Layout::new::<T>()) } {
        Some(class) => take(class),
        None => allocate(layout),
    };
    let place = block.cast::<T>();
    // SAFETY: fresh memory, large enough and aligned.
    unsafe { place.write(value) };
    place
}

/// Takes the value out and frees the block.
///
/// # Safety
/// The pointer came from `put` and is not used any more.
#[inline]
pub(crate) unsafe fn take_out<T>(place: *mut T) -> T {
    // SAFETY: the caller's promise.
    unsafe {
        let value = place.read();
        match const { class(Layout::new::<T>()) } {
            Some(class) => free(class, place.cast()),
            None => dealloc(place.cast(), const { Layout::new::<T>() }),
        }
        value
    }
}

#[inline]
fn take(class: usize) -> *mut u8 {
    // A thread that is ending has no shelves any more.
    let kept = SHELVES.try_with(|shelves| {
        // SAFETY: only this thread gets here, and nothing below calls foreign code or comes back.
        let shelf = unsafe { &mut (*shelves.get()).0[class] };
        let block = shelf.open.pop().or_else(|| refill(shelf, class))?;
        if let [.., next, _, _, _] = &shelf.open[..] {
            prefetch(next.0);
        }
        Some(block.0)
    });
    kept.ok().flatten().unwrap_or_else(|| allocate(block_layout(SIZES[class])))
}

#[cold]
fn refill(shelf: &mut Shelf, class: usize) -> Option<Block> {
    std::mem::swap(&mut shelf.open, &mut shelf.full);
    if shelf.open.is_empty() {
        shelf.open = store(class).pop()?;
    }
    shelf.open.pop()
}

/// # Safety
/// The block came from `take` for the same class and is not used any more.
#[inline]
unsafe fn free(class: usize, block: *mut u8) {
    let kept = SHELVES.try_with(|shelves| {
        // SAFETY: as in `take`.
        let shelf = unsafe { &mut (*shelves.get()).0[class] };
        if shelf.open.len() == shelf.open.capacity() {
            hand_on(shelf, class);
        }
        shelf.open.push(Block(block));
    });
    if kept.is_err() {
        // SAFETY: made by `allocate` with this layout, and free.
        unsafe { dealloc(block, block_layout(SIZES[class])) };
    }
}

/// Makes room on the shelf.
#[cold]
fn hand_on(shelf: &mut Shelf, class: usize) {
    std::mem::swap(&mut shelf.open, &mut shelf.full);
    if shelf.open.capacity() < BUNDLE {
        shelf.open.reserve_exact(BUNDLE);
    }
    if shelf.open.is_empty() {
        return;
    }
    {
        let mut store = store(class);
        if store.len() < MOST_BUNDLES {
            store.push(std::mem::replace(&mut shelf.open, Vec::with_capacity(BUNDLE)));
            return;
        }
    }
    give_back(&mut shelf.open, SIZES[class]);
}

#[cfg(test)]
mod tests {
    use super::{BUNDLE, put, take_out};

    /// More blocks than a thread keeps, of every size, made here and freed there and the other way round.
    #[test]
    fn values_survive_their_way_through_the_blocks() {
        fn round<T: Copy + PartialEq + Send + 'static>(value: impl Fn(usize) -> T) {
            struct Block<T>(*mut T);
            // SAFETY: the value is Send and has one owner.
            unsafe impl<T: Send> Send for Block<T> {}
            for _ in 0..3 {
                let blocks: Vec<_> = (0..5 * BUNDLE).map(|index| Block(put(value(index)))).collect();
                let back = std::thread::spawn(move || {
                    // SAFETY: each was made by `put` and is taken out once.
                    blocks.into_iter().map(|block| unsafe { take_out(block.0) }).collect::<Vec<T>>()
                });
                let back = back.join().unwrap_or_default();
                assert!(back.into_iter().enumerate().all(|(index, found)| found == value(index)));
            }
        }
        round(|index| index);
        round(|index| [index; 8]);
        round(|index| [index; 16]);
        round(|index| [index; 40]);
    }
}
