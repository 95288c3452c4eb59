//! What is wrong with a request, before it is a problem document: a batch reports faults per message, everything
//! else as the whole answer.

use core::fmt;

/// A field that is not what it should be, or a request that cannot be read at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Path of the field at fault, such as `backoff.factor` or `extend[3].lease_s`.
    pub field: Option<String>,
    /// Continues the field's name: `must be a whole number 1..=1000`. A sentence of its own without a field.
    pub text: String,
    /// True where the size is at fault (413), false where the value is (400).
    pub too_large: bool,
}

impl Fault {
    /// `field` has a value that is not allowed.
    pub(crate) fn of(field: impl fmt::Display, text: impl Into<String>) -> Self {
        Self { field: Some(field.to_string()), text: text.into(), too_large: false }
    }

    /// The request as a whole is malformed.
    pub(crate) fn request(text: impl Into<String>) -> Self {
        Self { field: None, text: text.into(), too_large: false }
    }

    /// `field` is larger than allowed.
    pub(crate) fn too_large(field: &'static str, text: impl Into<String>) -> Self {
        Self { field: Some(field.to_owned()), text: text.into(), too_large: true }
    }

    /// The same fault, seen from the object that holds `parent`.
    pub(crate) fn within(mut self, parent: impl fmt::Display) -> Self {
        self.field = Some(match self.field {
            Some(field) => format!("{parent}.{field}"),
            None => parent.to_string(),
        });
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{field} {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

impl core::error::Error for Fault {}
