//! Rows on their way into a file: columns of numbers into per-group dictionaries.
//!
//! A [`RowGroup`] belongs to one thread while it is filled and to another while it
//! is encoded; nothing is shared. Dictionaries start empty with each group, so
//! that a group's dictionary holds only what occurs in it.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use crate::schema::{Coding, ColumnType, Table};

/// The number of a null in a dictionary column.
pub const NULL: u32 = u32::MAX;

/// Rows of one table.
pub struct RowGroup {
    pub table: &'static Table,
    pub rows: usize,
    pub columns: Vec<ColumnRows>,
}

pub enum ColumnRows {
    Dictionary(DictionaryRows),
    Delta(DeltaRows),
    Plain(Vec<Option<f32>>),
}

/// Integers one after the other.
#[derive(Default)]
pub struct DeltaRows {
    /// Of the rows that have one.
    pub values: Vec<i64>,
    /// Of each row whether it has one; kept only from the first that has none on, with those
    /// before it.
    pub present: Option<Vec<bool>>,
}

/// Numbers into `values`; of a text column these are numbers of [`Texts`].
#[derive(Default)]
pub struct DictionaryRows {
    pub values: Vec<i64>,
    pub rows: Vec<u32>,
    /// The values of a text column, once the group is full.
    pub texts: Option<Vec<Arc<str>>>,
    numbers: HashMap<i64, u32, BuildHasherDefault<MultiplyHasher>>,
}

/// A field of a row on its way into a group.
#[derive(Clone, Copy, Debug)]
pub enum Cell<'a> {
    Null,
    /// In a column of text: its number in [`Texts`].
    Int(i64),
    Float(f32),
    Text(&'a str),
}

/// Every text of the run once.
#[derive(Default)]
pub struct Texts {
    texts: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, i64>,
}

impl<'a> From<&'a reader::rows::Cell<'_>> for Cell<'a> {
    fn from(cell: &'a reader::rows::Cell) -> Cell<'a> {
        match cell {
            reader::rows::Cell::Null => Cell::Null,
            reader::rows::Cell::Int(value) => Cell::Int(*value),
            reader::rows::Cell::Float(value) => Cell::Float(*value),
            reader::rows::Cell::Text(text) => Cell::Text(text),
        }
    }
}

impl RowGroup {
    pub fn new(table: &'static Table) -> RowGroup {
        let column = |coding| match coding {
            Coding::Dictionary => ColumnRows::Dictionary(DictionaryRows::default()),
            Coding::Delta => ColumnRows::Delta(DeltaRows::default()),
            Coding::Plain => ColumnRows::Plain(Vec::new()),
        };
        RowGroup {
            table,
            rows: 0,
            columns: table.columns.iter().map(|c| column(c.coding)).collect(),
        }
    }

    /// Appends one row of crate `reader`.
    pub fn push_row<const N: usize>(&mut self, texts: &mut Texts, row: &[reader::rows::Cell; N]) {
        self.push(texts, row.each_ref().map(Cell::from));
    }

    /// Appends one row, a cell for each column.
    pub fn push<const N: usize>(&mut self, texts: &mut Texts, cells: [Cell; N]) {
        assert_eq!(N, self.columns.len(), "cells of {}", self.table.name);
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            match (column, cell) {
                (ColumnRows::Dictionary(column), Cell::Null) => column.rows.push(NULL),
                (ColumnRows::Dictionary(column), Cell::Int(value)) => column.push(value),
                (ColumnRows::Dictionary(column), Cell::Text(text)) => {
                    column.push(texts.number(text));
                }
                (ColumnRows::Delta(column), Cell::Int(value)) => column.push(Some(value)),
                (ColumnRows::Delta(column), Cell::Null) => column.push(None),
                (ColumnRows::Plain(column), Cell::Float(value)) => column.push(Some(value)),
                (ColumnRows::Plain(column), Cell::Null) => column.push(None),
                (_, cell) => panic!("{}: no column for {cell:?}", self.table.name),
            }
        }
        self.rows += 1;
    }

    /// The three columns of times that begin with column `at`.
    pub fn times(&mut self, at: usize) -> [&mut DeltaRows; 3] {
        let columns = self.columns.get_mut(at..at + 3);
        let Some(
            [
                ColumnRows::Delta(begin),
                ColumnRows::Delta(end),
                ColumnRows::Delta(nanos),
            ],
        ) = columns
        else {
            panic!(
                "columns {at} to {} of {} are no times",
                at + 2,
                self.table.name
            );
        };
        [begin, end, nanos]
    }

    /// The dictionary of column `at`, which must have one.
    pub fn dictionary(&mut self, at: usize) -> &mut DictionaryRows {
        match &mut self.columns[at] {
            ColumnRows::Dictionary(column) => column,
            _ => panic!("column {at} of {} has no dictionary", self.table.name),
        }
    }

    /// Takes the rows, complete with their texts, and leaves an empty group.
    pub fn take(&mut self, texts: &Texts) -> RowGroup {
        let mut full = std::mem::replace(self, RowGroup::new(self.table));
        for (column, about) in full.columns.iter_mut().zip(full.table.columns) {
            if let (ColumnRows::Dictionary(column), ColumnType::Text) = (column, about.ty) {
                let values = column.values.iter();
                column.texts = Some(values.map(|&n| texts.texts[n as usize].clone()).collect());
            }
        }
        full
    }
}

impl DeltaRows {
    #[inline]
    pub fn push(&mut self, value: Option<i64>) {
        if let Some(value) = value {
            self.values.push(value);
        } else if self.present.is_none() {
            self.present = Some(vec![true; self.values.len()]);
        }
        if let Some(present) = &mut self.present {
            present.push(value.is_some());
        }
    }
}

impl DictionaryRows {
    #[inline]
    pub fn push(&mut self, value: i64) {
        let number = self.number(value);
        self.rows.push(number);
    }

    pub fn push_or_null(&mut self, value: Option<i64>) {
        let number = self.number_or_null(value);
        self.rows.push(number);
    }

    /// The number of a value in this group's dictionary.
    #[inline]
    pub fn number(&mut self, value: i64) -> u32 {
        let next = self.values.len() as u32;
        let number = *self.numbers.entry(value).or_insert(next);
        if number == next {
            self.values.push(value);
        }
        number
    }

    pub fn number_or_null(&mut self, value: Option<i64>) -> u32 {
        value.map_or(NULL, |value| self.number(value))
    }
}

impl Texts {
    pub fn number(&mut self, text: &str) -> i64 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.texts.len() as i64;
        let text: Arc<str> = text.into();
        self.texts.push(text.clone());
        self.numbers.insert(text, number);
        number
    }
}

/// For keys that are integers of our own: the default hasher, which withstands
/// attackers, takes most of the time of a dynamic access.
#[derive(Default)]
struct MultiplyHasher(u64);

impl Hasher for MultiplyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let product =
            u128::from(self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write_i64(&mut self, value: i64) {
        self.write_u64(value as u64);
    }
}
