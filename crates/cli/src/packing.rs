//! Files that are gzipped if their name says so.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Writes what goes to `path`, gzipped if its name ends with `.gz`.
pub(crate) fn write<T>(
    path: &Path,
    out: &mut dyn Write,
    content: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if !path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gz")) {
        let told = content(out)?;
        out.flush()?;
        return Ok(told);
    }
    let mut packed = GzEncoder::new(out, Compression::default());
    let told = content(&mut packed)?;
    packed.finish()?.flush()?;
    Ok(told)
}
