//! Arrays as an evaluation's record holds them.

/// An array in the coding that `capture` chooses at the begin: see
/// `docs/trace-format.md`, "Begin section". At most `most_elements`.
pub fn take_coded(words: &mut &[u64], most_elements: u64) -> Result<Vec<i64>, String> {
    let (&header, rest) = words.split_first().ok_or("a begin section is too short")?;
    if header >> 8 > most_elements {
        return Err("a captured array is longer than its template says".into());
    }
    let elements = (header >> 8) as usize;
    let coding = header as u8;
    if coding == 1 {
        let (&runs, rest) = rest.split_first().ok_or("a begin section is too short")?;
        let runs = usize::try_from(runs)
            .ok()
            .and_then(|n| n.checked_mul(3))
            .ok_or("a length is too large")?;
        let triples = rest.get(..runs).ok_or("a begin section is too short")?;
        let mut values = Vec::new();
        for run in triples.chunks_exact(3) {
            if run[2] > (elements - values.len()) as u64 {
                return Err("the runs of an array add up to too many elements".into());
            }
            values
                .extend((0..run[2]).map(|i| (run[0].wrapping_add(run[1].wrapping_mul(i))) as i64));
        }
        *words = &rest[runs..];
        return if values.len() == elements {
            Ok(values)
        } else {
            Err("the runs of an array are too few".into())
        };
    }
    if !matches!(coding, 2 | 4 | 8) {
        return Err(format!("an array has the unknown coding {coding}"));
    }
    let used = elements
        .checked_mul(usize::from(coding))
        .ok_or("a length is too large")?
        .div_ceil(8);
    let data = rest.get(..used).ok_or("a begin section is too short")?;
    let values = unpack(data, coding, elements)?;
    *words = &rest[used..];
    Ok(values)
}

pub fn unpack(words: &[u64], width_bytes: u8, elements: usize) -> Result<Vec<i64>, String> {
    let width = u32::from(width_bytes) * 8;
    if !matches!(width, 16 | 32 | 64) {
        return Err(format!("elements of {width_bytes} bytes are unknown"));
    }
    let per_word = (64 / width) as usize;
    let mask = if width == 64 {
        u64::MAX
    } else {
        (1 << width) - 1
    };
    Ok((0..elements)
        .map(|i| (words[i / per_word] >> (width as usize * (i % per_word)) & mask) as i64)
        .collect())
}
