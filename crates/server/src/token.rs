//! The secret in the address: whoever has it may look at the runs.
//!
//! Loopback is open to every user and every program of the machine, so the port
//! alone protects nothing. The token is 128 random bits, made anew at each start.

use std::{fmt, hint::black_box};

use crate::error::ServerError;

const TOKEN_BYTES: usize = 16;

/// Random, printed once, never stored.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    pub fn random() -> Result<Token, ServerError> {
        let mut bytes = [0u8; TOKEN_BYTES];
        getrandom::fill(&mut bytes).map_err(|cause| ServerError::Random {
            cause: cause.into(),
        })?;
        Ok(Token(bytes.iter().map(|b| format!("{b:02x}")).collect()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares without stopping at the first difference, so that the time of an
    /// answer does not tell how much of a guess was right.
    pub fn is(&self, guess: &str) -> bool {
        let (own, guess) = (self.0.as_bytes(), guess.as_bytes());
        if own.len() != guess.len() {
            return false;
        }
        let difference = own
            .iter()
            .zip(guess)
            .fold(0u8, |difference, (a, b)| black_box(difference | (a ^ b)));
        difference == 0
    }
}

/// Logs and panics do not give it away.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_128_bits_and_differ() {
        let (a, b) = (Token::random().unwrap(), Token::random().unwrap());
        assert_eq!(a.as_str().len(), 32);
        assert!(a.as_str().bytes().all(|b| b.is_ascii_hexdigit()));
        assert_ne!(a.as_str(), b.as_str());
    }

    #[test]
    fn only_the_whole_token_is_the_token() {
        let token = Token::random().unwrap();
        let own = token.as_str().to_owned();
        assert!(token.is(&own));
        let last = if own.ends_with('0') { '1' } else { '0' };
        for wrong in [
            String::new(),
            own[..31].to_owned(),
            format!("{own}0"),
            format!("{}{last}", &own[..31]),
            own.to_uppercase() + " ",
        ] {
            assert!(!token.is(&wrong), "{wrong}");
        }
    }

    #[test]
    fn debug_output_hides_the_token() {
        let token = Token::random().unwrap();
        assert!(!format!("{token:?}").contains(token.as_str()));
    }
}
