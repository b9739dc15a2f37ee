//! Parallel loops over ranges and slices, split only when an idle worker asks for a part.
//!
//! No tuning: a loop runs in growing chunks and looks after each whether somebody wants work; then it forks off half of
//! what is left. It never allocates, except for the results of `map`.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::context::{Ctx, run};

/// The most items between two looks unless they are known to be small: enough for the look to cost nothing.
const CHUNK: usize = 512;

/// How long a chunk may take if it is to grow further: whoever asks for work is answered within about twice that.
const SOON: Duration = Duration::from_micros(10);

/// What a loop over a range needs to know.
struct Loop<'a, I, F, O> {
    identity: &'a I,
    fold: &'a F,
    combine: &'a O,
}

impl<I, F, O> Clone for Loop<'_, I, F, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, F, O> Copy for Loop<'_, I, F, O> {}

/// Folds a range, forking off half of the rest whenever somebody asks.
fn drive<T, I, F, O>(mut ctx: Ctx<'_>, mut range: Range<usize>, parts: Loop<'_, I, F, O>) -> T
where
    T: Send,
    I: Fn() -> T + Sync,
    F: Fn(T, Range<usize>) -> T + Sync,
    O: Fn(T, T) -> T + Sync,
{
    let mut sum = (parts.identity)();
    let (mut chunk, mut largest) = (1, 1);
    while !range.is_empty() {
        if range.len() > 1 && ctx.is_wanted() {
            let middle = range.start + range.len() / 2;
            let (left, right) = (range.start..middle, middle..range.end);
            let (first, second) = ctx.join(move |ctx| drive(ctx, left, parts), move |ctx| drive(ctx, right, parts));
            return (parts.combine)(sum, (parts.combine)(first, second));
        }
        let end = range.start + chunk.min(range.len());
        let began = (chunk >= CHUNK).then(Instant::now);
        sum = pass(parts.fold, sum, range.start..end);
        range.start = end;
        let took = began.map(|began| began.elapsed());
        if took.is_none_or(|took| took < SOON) {
            chunk *= 2;
        }
        // Never more than an eighth of what is left, so that the last chunks stay small; but if the last ones were quick,
        // not much less than a microsecond.
        let grain = if took.is_some_and(|took| took < SOON) { largest / 32 } else { 1 };
        largest = largest.max(chunk);
        chunk = chunk.min(range.len() / 8).max(grain).max(1);
    }
    sum
}

/// One chunk. A function of its own, because compilers unroll a loop that stands alone, not one in the midst of `drive`.
#[inline(never)]
fn pass<T>(fold: &impl Fn(T, Range<usize>) -> T, sum: T, chunk: Range<usize>) -> T {
    fold(sum, chunk)
}

/// Maps every number of a range and combines the results, in order.
///
/// `combine` must be associative and `identity` neutral for it; the grouping depends on who was idle.
///
/// ```
/// let squares = filch_pool::reduce(0..1000, || 0, |i| i * i, |a, b| a + b);
/// assert_eq!(squares, 332_833_500);
/// ```
pub fn reduce<T: Send>(
    range: Range<usize>,
    identity: impl Fn() -> T + Sync,
    map: impl Fn(usize) -> T + Sync,
    combine: impl Fn(T, T) -> T + Sync,
) -> T {
    let fold = |sum: T, chunk: Range<usize>| chunk.fold(sum, |sum, index| combine(sum, map(index)));
    run(|ctx| drive(ctx, range, Loop { identity: &identity, fold: &fold, combine: &combine }))
}

/// Calls `body` for every number of a range.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let sum = AtomicUsize::new(0);
/// filch_pool::for_each(0..100, |i| _ = sum.fetch_add(i, Ordering::Relaxed));
/// assert_eq!(sum.into_inner(), 4950);
/// ```
pub fn for_each(range: Range<usize>, body: impl Fn(usize) + Sync) {
    let fold = |(), chunk: Range<usize>| chunk.for_each(&body);
    run(|ctx| drive(ctx, range, Loop { identity: &|| (), fold: &fold, combine: &|(), ()| () }));
}

/// A slice whose disjoint parts are given to different workers.
struct Parts<T>(*mut T);

// SAFETY: used only to reach disjoint elements, each by one worker at a time, and T is Send.
unsafe impl<T: Send> Sync for Parts<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Parts<T> {}

impl<T> Parts<T> {
    fn at(&self, index: usize) -> *mut T {
        self.0.wrapping_add(index)
    }
}

/// Calls `body` for every element of a slice, which it may change.
///
/// ```
/// let mut numbers = vec![1, 2, 3];
/// filch_pool::for_each_mut(&mut numbers, |number| *number *= 10);
/// assert_eq!(numbers, [10, 20, 30]);
/// ```
pub fn for_each_mut<T: Send>(slice: &mut [T], body: impl Fn(&mut T) + Sync) {
    let (parts, range) = (Parts(slice.as_mut_ptr()), 0..slice.len());
    let fold = |(), chunk: Range<usize>| {
        // SAFETY: the chunk is inside the slice, which is borrowed for the whole call, and chunks do not overlap.
        let part = unsafe { std::slice::from_raw_parts_mut(parts.at(chunk.start), chunk.len()) };
        each(part, &body);
    };
    run(|ctx| drive(ctx, range, Loop { identity: &|| (), fold: &fold, combine: &|(), ()| () }));
}

/// Calls `body` for every element of one chunk. As in `pass`: of a slice it is given, the compiler knows that its length is
/// sane, and unrolls the loop; of one made from a pointer and a number it does not. That took 1.4 times as long.
#[inline(never)]
fn each<T>(part: &mut [T], body: &impl Fn(&mut T)) {
    part.iter_mut().for_each(body);
}

/// The results of `body` for every element of a slice, in order.
///
/// If `body` panics, the results that were there already are leaked, not dropped.
///
/// ```
/// assert_eq!(filch_pool::map(&["a", "bc"], |text| text.len()), [1, 2]);
/// ```
pub fn map<T: Sync, R: Send>(slice: &[T], body: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let mut results: Vec<R> = Vec::with_capacity(slice.len());
    let parts = Parts(results.as_mut_ptr());
    // SAFETY: the index is below the capacity and comes up exactly once.
    for_each(0..slice.len(), |index| unsafe { parts.at(index).write(body(&slice[index])) });
    // SAFETY: every element was written; a panic would not have come here.
    unsafe { results.set_len(slice.len()) };
    results
}
