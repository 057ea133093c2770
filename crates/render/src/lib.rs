//! A trace in the formats of other tools.
