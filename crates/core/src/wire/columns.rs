//! Columns: the same field of many things, one after another, which protobuf packs tightly. Numbers that grow are
//! written as differences; a column whose entries are all alike is written as one entry.

use super::WireError;

/// Each number as its difference to the one before it.
#[must_use]
pub fn differences(values: impl Iterator<Item = u64>) -> Vec<i64> {
    let mut column: Vec<i64> = values.map(|value| value as i64).collect();
    take_differences(&mut column);
    column
}

/// The same in place.
pub(super) fn take_differences(column: &mut [i64]) {
    let mut before = 0i64;
    for entry in column {
        *entry = entry.wrapping_sub(std::mem::replace(&mut before, *entry));
    }
}

/// The numbers behind their differences.
pub fn sums(column: &[i64]) -> impl Iterator<Item = u64> + '_ {
    column.iter().scan(0u64, |sum, &step| {
        *sum = sum.wrapping_add(step as u64);
        Some(*sum)
    })
}

/// The values, or only the first if all are alike.
pub(super) fn alike<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut column: Vec<T> = values.collect();
    condense(&mut column);
    column
}

/// The same in place.
pub(super) fn condense<T: PartialEq>(column: &mut Vec<T>) {
    if column.windows(2).all(|pair| pair[0] == pair[1]) {
        column.truncate(1);
    }
}

/// The values of a column of `count` entries that was written by [`alike`].
pub(super) fn spread<T: Copy>(column: &[T], count: usize) -> Result<impl Iterator<Item = T> + '_, WireError> {
    let one_for_all = column.len() == 1;
    if column.len() != count && !one_for_all {
        return Err(WireError::Columns);
    }
    Ok((0..count).map(move |at| column[if one_for_all { 0 } else { at }]))
}

/// A column with an entry for each.
pub(super) fn whole<T>(column: &[T], count: usize) -> Result<&[T], WireError> {
    if column.len() == count { Ok(column) } else { Err(WireError::Columns) }
}
