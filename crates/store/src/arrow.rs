//! The tables as Arrow knows them.

use std::{collections::HashMap, sync::Arc};

use datafusion::arrow::datatypes::{DataType, Field, Schema};

use crate::schema::{ColumnType, Nulls, Table};

pub fn schema(table: &Table) -> Arc<Schema> {
    let fields: Vec<Field> = table
        .columns
        .iter()
        .map(|c| Field::new(c.name, data_type(c.ty), c.nulls == Nulls::Allowed))
        .collect();
    Arc::new(Schema::new_with_metadata(fields, HashMap::new()))
}

fn data_type(ty: ColumnType) -> DataType {
    match ty {
        ColumnType::Int32 => DataType::Int32,
        ColumnType::Int64 => DataType::Int64,
        ColumnType::Float32 => DataType::Float32,
        ColumnType::Text => {
            DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
        }
    }
}
