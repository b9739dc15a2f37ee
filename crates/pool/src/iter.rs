//! Parallel loops over ranges and slices, split only when an idle worker asks for a part.
//!
//! No tuning: a loop runs in growing chunks and looks after each whether somebody wants work; then it forks off half of
//! what is left. It never allocates, except for the results of `map`.

use std::marker::PhantomData;
use std::ops::{Range, RangeInclusive};
use std::time::{Duration, Instant};
use std::{mem, ptr};

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

/// What a parallel loop can go over: ranges of numbers, slices, and whatever lends one, also to be changed.
///
/// ```
/// use filch_pool::{for_each, map, reduce};
///
/// let mut numbers = vec![1, 2, 3];
/// for_each(&mut numbers, |number| *number *= 10);
/// assert_eq!(map(&numbers, |number| number + 1), [11, 21, 31]);
/// assert_eq!(map(0..3, |number| number * number), [0, 1, 4]);
/// assert_eq!(map(1..=3, |number| number * number), [1, 4, 9]);
/// assert_eq!(reduce(&numbers[1..], || 0, |number| *number, |a, b| a + b), 50);
/// ```
///
/// Nothing else can be made one: for what you have, take the range of its indices. A range must not be longer than `usize::MAX`.
pub trait Items {
    /// What the loop's body gets.
    type Item;
    #[doc(hidden)]
    type Source: Source<Item = Self::Item>;
    #[doc(hidden)]
    fn source(self) -> Self::Source;
}

/// Items that can be reached from several workers, each of them by one.
pub trait Source: Sync {
    type Item;

    fn count(&self) -> usize;

    /// Folds one part.
    ///
    /// # Safety
    /// The part lies within the length, and no two parts overlap as long as the source lives.
    unsafe fn fold_part<A>(&self, part: Range<usize>, sum: A, step: impl FnMut(A, Self::Item) -> A) -> A;

    /// Visits one part.
    ///
    /// # Safety
    /// As for `fold_part`.
    unsafe fn visit_part(&self, part: Range<usize>, mut body: impl FnMut(Self::Item)) {
        // SAFETY: the caller's promise.
        unsafe { self.fold_part(part, (), |(), item| body(item)) }
    }
}

/// Numbers with ranges.
pub trait Number: Copy + PartialOrd + Sync {
    fn distance(range: &Range<Self>) -> usize;

    /// The number so many behind this one.
    fn step(self, count: usize) -> Self;

    /// Folds the numbers whose places in the range are given.
    fn fold<A>(range: &Range<Self>, part: Range<usize>, sum: A, step: impl FnMut(A, Self) -> A) -> A;
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Number for $number {
            fn distance(range: &Range<Self>) -> usize {
                let distance = (i128::from_number(range.end) - i128::from_number(range.start)).max(0);
                usize::try_from(distance).unwrap_or_else(|_| panic!("a loop over {range:?} is too long"))
            }

            fn step(self, count: usize) -> Self {
                // It lies within a range that there is, so the sum is exact, whatever it wraps around on the way.
                self.wrapping_add(count as Self)
            }

            fn fold<A>(range: &Range<Self>, part: Range<usize>, sum: A, step: impl FnMut(A, Self) -> A) -> A {
                (range.start.step(part.start)..range.start.step(part.end)).fold(sum, step)
            }
        }

        impl FromNumber<$number> for i128 {
            fn from_number(number: $number) -> Self {
                number as Self
            }
        }
    )*};
}

trait FromNumber<N> {
    fn from_number(number: N) -> Self;
}

numbers!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize);

impl<N: Number> Items for Range<N> {
    type Item = N;
    type Source = Self;

    fn source(self) -> Self {
        self
    }
}

impl<N: Number> Source for Range<N> {
    type Item = N;

    fn count(&self) -> usize {
        N::distance(self)
    }

    unsafe fn fold_part<A>(&self, part: Range<usize>, sum: A, step: impl FnMut(A, N) -> A) -> A {
        N::fold(self, part, sum, step)
    }
}

/// Numbers from the first on, up to one behind which there need not be another.
pub struct Inclusive<N> {
    first: N,
    count: usize,
}

impl<N: Number> Items for RangeInclusive<N> {
    type Item = N;
    type Source = Inclusive<N>;

    fn source(self) -> Inclusive<N> {
        let (first, last) = (*self.start(), *self.end());
        let too_long = || panic!("a loop over so many numbers is too long");
        let count =
            if self.is_empty() { 0 } else { N::distance(&(first..last)).checked_add(1).unwrap_or_else(too_long) };
        Inclusive { first, count }
    }
}

impl<N: Number> Source for Inclusive<N> {
    type Item = N;

    fn count(&self) -> usize {
        self.count
    }

    unsafe fn fold_part<A>(&self, part: Range<usize>, sum: A, mut step: impl FnMut(A, N) -> A) -> A {
        let Some(last) = part.end.checked_sub(1).filter(|last| part.start <= *last) else { return sum };
        let sum = N::fold(&(self.first..self.first), part.start..last, sum, &mut step);
        step(sum, self.first.step(last))
    }
}

impl<'a, T: Sync> Source for &'a [T] {
    type Item = &'a T;

    fn count(&self) -> usize {
        <[T]>::len(self)
    }

    unsafe fn fold_part<A>(&self, part: Range<usize>, sum: A, step: impl FnMut(A, &'a T) -> A) -> A {
        let slice: &'a [T] = self;
        slice[part].iter().fold(sum, step)
    }
}

/// A slice whose disjoint parts are given to different workers.
pub struct Parts<'a, T> {
    first: *mut T,
    len: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: used only to reach disjoint elements, each by one worker at a time, and T is Send.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T: Send> Source for Parts<'a, T> {
    type Item = &'a mut T;

    fn count(&self) -> usize {
        self.len
    }

    unsafe fn fold_part<A>(&self, part: Range<usize>, sum: A, step: impl FnMut(A, &'a mut T) -> A) -> A {
        // SAFETY: the caller's promise.
        unsafe { self.part(part) }.iter_mut().fold(sum, step)
    }

    unsafe fn visit_part(&self, part: Range<usize>, body: impl FnMut(&'a mut T)) {
        // SAFETY: the caller's promise.
        each(unsafe { self.part(part) }, body);
    }
}

impl<'a, T> Parts<'a, T> {
    /// # Safety
    /// As for `Source::fold_part`.
    unsafe fn part(&self, part: Range<usize>) -> &'a mut [T] {
        // SAFETY: inside the slice, which is borrowed as long as this lives, and parts do not overlap.
        unsafe { std::slice::from_raw_parts_mut(self.first.wrapping_add(part.start), part.len()) }
    }
}

/// Calls `body` for every element of one chunk. As in `pass`: of a slice it is given, the compiler knows that its length is
/// sane, and unrolls the loop; of one made from a pointer and a number it does not. That took 1.4 times as long, and a fold twice.
#[inline(never)]
fn each<'a, T>(part: &'a mut [T], body: impl FnMut(&'a mut T)) {
    part.iter_mut().for_each(body);
}

impl<'a, T: Send> Items for &'a mut [T] {
    type Item = &'a mut T;
    type Source = Parts<'a, T>;

    fn source(self) -> Parts<'a, T> {
        Parts { first: self.as_mut_ptr(), len: self.len(), borrowed: PhantomData }
    }
}

impl<'a, T: Sync> Items for &'a [T] {
    type Item = &'a T;
    type Source = Self;

    fn source(self) -> Self {
        self
    }
}

impl<'a, T: Sync> Items for &'a Vec<T> {
    type Item = &'a T;
    type Source = &'a [T];

    fn source(self) -> &'a [T] {
        self
    }
}

impl<'a, T: Send> Items for &'a mut Vec<T> {
    type Item = &'a mut T;
    type Source = Parts<'a, T>;

    fn source(self) -> Parts<'a, T> {
        self.as_mut_slice().source()
    }
}

impl<'a, T: Sync, const LEN: usize> Items for &'a [T; LEN] {
    type Item = &'a T;
    type Source = &'a [T];

    fn source(self) -> &'a [T] {
        self
    }
}

impl<'a, T: Send, const LEN: usize> Items for &'a mut [T; LEN] {
    type Item = &'a mut T;
    type Source = Parts<'a, T>;

    fn source(self) -> Parts<'a, T> {
        self.as_mut_slice().source()
    }
}

/// Folds all items, given one part after the other by `fold`.
fn whole<T, F>(length: usize, identity: impl Fn() -> T + Sync, fold: F, combine: impl Fn(T, T) -> T + Sync) -> T
where
    T: Send,
    F: Fn(T, Range<usize>) -> T + Sync,
{
    run(|ctx| drive(ctx, 0..length, Loop { identity: &identity, fold: &fold, combine: &combine }))
}

/// Maps every item and combines the results, in order.
///
/// `combine` must be associative and `identity` neutral for it; the grouping depends on who was idle.
///
/// ```
/// let squares = filch_pool::reduce(0..1000, || 0, |i| i * i, |a, b| a + b);
/// assert_eq!(squares, 332_833_500);
/// let longest = filch_pool::reduce(&["a", "bc"], || 0, |text| text.len(), usize::max);
/// assert_eq!(longest, 2);
/// ```
pub fn reduce<I: Items, T: Send>(
    items: I,
    identity: impl Fn() -> T + Sync,
    map: impl Fn(I::Item) -> T + Sync,
    combine: impl Fn(T, T) -> T + Sync,
) -> T {
    let source = items.source();
    // SAFETY: `drive` splits the range into parts that do not overlap.
    let fold = |sum: T, part| unsafe { source.fold_part(part, sum, |sum, item| combine(sum, map(item))) };
    whole(source.count(), identity, fold, &combine)
}

/// Calls `body` for every item.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let sum = AtomicUsize::new(0);
/// filch_pool::for_each(0..100, |i| _ = sum.fetch_add(i, Ordering::Relaxed));
/// assert_eq!(sum.into_inner(), 4950);
/// let mut numbers = [1, 2, 3];
/// filch_pool::for_each(&mut numbers, |number| *number *= 10);
/// assert_eq!(numbers, [10, 20, 30]);
/// ```
pub fn for_each<I: Items>(items: I, body: impl Fn(I::Item) + Sync) {
    let source = items.source();
    // SAFETY: as in `reduce`.
    let fold = |(), part| unsafe { source.visit_part(part, &body) };
    whole(source.count(), || (), fold, |(), ()| ());
}

/// Results of `map` that lie side by side in memory which is not theirs. Should the loop end by a panic, they are dropped.
struct Filled<R> {
    first: *mut R,
    count: usize,
}

// SAFETY: it owns its results, and R is Send.
unsafe impl<R: Send> Send for Filled<R> {}

impl<R> Filled<R> {
    const NONE: Self = Self { first: ptr::null_mut(), count: 0 };

    /// Adds one result behind the others.
    ///
    /// # Safety
    /// There is room for it, and nobody else has it.
    #[inline]
    unsafe fn push(mut self, result: R) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.first.wrapping_add(self.count).write(result) };
        self.count += 1;
        self
    }

    /// Adds results that lie right behind these.
    fn append(mut self, next: Self) -> Self {
        if self.count == 0 {
            return next;
        }
        debug_assert!(next.count == 0 || ptr::eq(self.first.wrapping_add(self.count), next.first));
        self.count += mem::ManuallyDrop::new(next).count;
        self
    }
}

impl<R> Drop for Filled<R> {
    fn drop(&mut self) {
        if self.count > 0 {
            // SAFETY: so many were written from there on, and nobody else owns them.
            unsafe { ptr::slice_from_raw_parts_mut(self.first, self.count).drop_in_place() };
        }
    }
}

/// Where the results of `map` go.
struct Places<R>(*mut R);

// SAFETY: used only to write disjoint elements, each by one worker, and R is Send.
unsafe impl<R: Send> Sync for Places<R> {}

impl<R> Places<R> {
    fn at(&self, index: usize) -> *mut R {
        self.0.wrapping_add(index)
    }
}

/// The results of `body` for every item, in order.
///
/// ```
/// assert_eq!(filch_pool::map(&["a", "bc"], |text| text.len()), [1, 2]);
/// assert_eq!(filch_pool::map(1..4, |number| 10 * number), [10, 20, 30]);
/// ```
pub fn map<I: Items, R: Send>(items: I, body: impl Fn(I::Item) -> R + Sync) -> Vec<R> {
    let source = items.source();
    let mut results: Vec<R> = Vec::with_capacity(source.count());
    let places = Places(results.as_mut_ptr());
    let fold = |before: Filled<R>, part: Range<usize>| {
        let here = Filled { first: places.at(part.start), count: 0 };
        // SAFETY: every place is below the capacity and comes up exactly once; and as in `reduce`.
        let here = unsafe { source.fold_part(part, here, |here, item| here.push(body(item))) };
        before.append(here)
    };
    let filled = whole(source.count(), || Filled::NONE, fold, Filled::append);
    debug_assert_eq!(filled.count, source.count());
    mem::forget(filled);
    // SAFETY: every element was written, and is nobody else's any more.
    unsafe { results.set_len(source.count()) };
    results
}
