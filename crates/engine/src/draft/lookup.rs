//! Guessing by what the text itself said before: prompts that are edited, summed up or quoted
//! come out again, word for word. Costs no model and no memory.

/// Longer matches are no surer.
const MAX_MATCH_TOKENS: usize = 16;

/// A place of the text that ends as the text ends, and what followed there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// How many tokens are the same.
    pub length: usize,
    pub tokens: Vec<i32>,
}

impl Match {
    /// See [`super::Draft::class`].
    pub fn class(&self) -> usize {
        match self.length {
            0 | 1 => 0,
            2 => 1,
            3 | 4 => 2,
            5..=8 => 3,
            _ => 4,
        }
    }
}

/// The longest match, the latest of equals; at most `max` tokens that followed it. Where the
/// text ends before that, it is taken to go on as it did, over and over.
pub fn find(tokens: &[i32], max: usize) -> Option<Match> {
    let last = *tokens.last()?;
    if max == 0 {
        return None;
    }
    // Length of the match, and where what follows it begins.
    let mut best = (0, 0);
    for follows in (1..tokens.len()).rev() {
        if tokens[follows - 1] != last {
            continue;
        }
        let length = same_ends(&tokens[..follows], tokens);
        if length > best.0 {
            best = (length, follows);
            if length == MAX_MATCH_TOKENS {
                break;
            }
        }
    }
    let (length, follows) = best;
    (length > 0).then(|| Match {
        length,
        tokens: tokens[follows..]
            .iter()
            .copied()
            .cycle()
            .take(max)
            .collect(),
    })
}

fn same_ends(a: &[i32], b: &[i32]) -> usize {
    let pairs = a.iter().rev().zip(b.iter().rev());
    let same = pairs.take_while(|(a, b)| a == b);
    same.take(MAX_MATCH_TOKENS).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &[i32], max: usize, expect: Option<(usize, &[i32])>) {
        let found = find(text, max).map(|found| (found.length, found.tokens));
        let expect = expect.map(|(length, tokens)| (length, tokens.to_vec()));
        assert_eq!(found, expect, "{text:?}");
    }

    #[test]
    fn what_followed_the_longest_match_is_guessed() {
        check(&[], 4, None);
        check(&[1], 4, None);
        check(&[1, 2, 3], 4, None);
        check(&[1, 2, 3, 1], 0, None);
        check(&[1, 2, 3, 1], 2, Some((1, &[2, 3])));
        // "1 2" was there twice; after "9 1 2" came 5.
        check(&[9, 1, 2, 5, 1, 2, 6, 9, 1, 2], 2, Some((3, &[5, 1])));
        // Of equal matches the latest.
        check(&[1, 2, 5, 1, 2, 6, 1, 2], 1, Some((2, &[6])));
    }

    #[test]
    fn a_text_that_repeats_itself_is_taken_to_go_on() {
        check(&[1, 2, 1, 2, 1, 2], 5, Some((4, &[1, 2, 1, 2, 1])));
        check(&[7, 7, 7], 3, Some((2, &[7, 7, 7])));
    }
}
