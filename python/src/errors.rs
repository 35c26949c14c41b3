//! Errors of the library as the exceptions of `warpann.errors`, with the numbers of the fault as attributes.

use std::fmt::Display;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};
use warpann::element::ElementType;
use warpann::{Error, Refusal, UnknownName};

/// Why a call failed while it had no hold of the interpreter.
pub enum Failure {
    /// An error of the library.
    Library(Error),
    /// An exception of the caller's code.
    Python(PyErr),
    /// The call would wait for the call that has called it.
    Busy,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Library(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Failure::Python(error)
    }
}

impl Failure {
    /// The exception that the caller gets.
    pub fn raised(self, py: Python<'_>) -> PyErr {
        match self {
            Failure::Library(error) => raised(py, error),
            Failure::Python(error) => error,
            Failure::Busy => {
                let message = "the index is in use by the call that has called this function";
                raise(py, "Busy", message, |facts| facts.set_item("kind", "busy"))
            }
        }
    }
}

/// The exception of the class `class` of `warpann.errors`, with attributes that `facts` sets.
pub fn raise(
    py: Python<'_>,
    class: &str,
    message: &str,
    facts: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>,
) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let made = || {
        let module = MODULE.get_or_try_init(py, || py.import("warpann.errors").map(Bound::unbind))?.bind(py);
        let attributes = PyDict::new(py);
        facts(&attributes)?;
        let class = module.getattr(PyString::new(py, class))?;
        class.call(PyTuple::new(py, [message])?, Some(&attributes))
    };
    made().map_or_else(|error| error, PyErr::from_value)
}

/// An array of another type than an argument needs.
pub fn wrong_type(py: Python<'_>, argument: &str, actual: &str, expected: &str) -> PyErr {
    let message = format!("{argument}: {actual}; {expected} is needed");
    raise(py, "WrongType", &message, |facts| {
        facts.set_item("kind", "wrong_type")?;
        facts.set_item("argument", argument)?;
        facts.set_item("actual", actual)?;
        facts.set_item("expected", expected)
    })
}

/// An array of another shape than an argument needs.
pub fn wrong_shape(py: Python<'_>, argument: &str, shape: &[usize], expected: &str) -> PyErr {
    let message = format!("{argument} of shape {shape:?}; {expected} is needed");
    raise(py, "WrongShape", &message, |facts| {
        facts.set_item("kind", "wrong_shape")?;
        facts.set_item("argument", argument)?;
        facts.set_item("shape", PyTuple::new(facts.py(), shape)?)?;
        facts.set_item("expected", expected)
    })
}

/// A text that is no name.
pub fn unknown_name(py: Python<'_>, error: &UnknownName) -> PyErr {
    unknown_text(py, error.text(), error.known(), &error.to_string())
}

/// A text that is not among those that are `known`.
pub fn unknown_text(py: Python<'_>, text: &str, known: &[&str], message: &str) -> PyErr {
    raise(py, "UnknownName", message, |facts| {
        facts.set_item("kind", "unknown_name")?;
        facts.set_item("text", text)?;
        facts.set_item("known", PyTuple::new(facts.py(), known)?)
    })
}

/// A panic of the library as an exception, so that no program meets pyo3's own exception for panics, which is no
/// `Exception`.
pub fn panicked(py: Python<'_>, payload: Box<dyn std::any::Any + Send>) -> PyErr {
    // A filter function of the caller ends a search by a panic with its exception.
    let payload = match payload.downcast::<PyErr>() {
        Ok(error) => return *error,
        Err(payload) => payload,
    };
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message");
    raise(py, "InternalError", text, |facts| facts.set_item("kind", "internal_error"))
}

/// A value of an error as an attribute.
trait Fact {
    fn set(&self, facts: &Bound<'_, PyDict>, name: &str) -> PyResult<()>;
}

macro_rules! fact {
    ($($type:ty),*) => {$(
        impl Fact for $type {
            fn set(&self, facts: &Bound<'_, PyDict>, name: &str) -> PyResult<()> {
                facts.set_item(name, self)
            }
        }
    )*};
}
fact!(usize, u64, i32, f32, f64, &'static str, String);

/// Sets the text of a value as an attribute.
fn text(facts: &Bound<'_, PyDict>, name: &str, value: &dyn Display) -> PyResult<()> {
    facts.set_item(name, value.to_string())
}

/// The exception of an error.
pub fn raised(py: Python<'_>, error: Error) -> PyErr {
    let (message, class) = (error.to_string(), class_name(error.kind()));
    let raised = raise(py, &class, &message, |facts| set_facts(&error, facts));
    // A class that this version of the Python layer does not have.
    let raised = match raised.is_instance_of::<pyo3::exceptions::PyAttributeError>(py) {
        true => {
            let class = match (error.is_input(), error.is_device()) {
                (true, _) => "InputError",
                (_, true) => "DeviceError",
                _ => "WarpannError",
            };
            raise(py, class, &message, |facts| facts.set_item("kind", error.kind()))
        }
        false => raised,
    };
    if let Error::DeviceFailed { source, .. } = error {
        raised.set_cause(py, Some(self::raised(py, *source)));
    }
    raised
}

/// `wrong_dimension` as `WrongDimension`.
fn class_name(kind: &str) -> String {
    let capitalised = |word: &str| word[..1].to_uppercase() + &word[1..];
    kind.split('_').filter(|word| !word.is_empty()).map(capitalised).collect()
}

macro_rules! set_fields {
    ($error:expr, $facts:expr; $($variant:ident { $($field:ident),* })*) => {
        match $error {
            $(Error::$variant { $($field,)* .. } => {
                $(Fact::set($field, $facts, stringify!($field))?;)*
            })*
            _ => {}
        }
    };
}

fn set_facts(error: &Error, facts: &Bound<'_, PyDict>) -> PyResult<()> {
    facts.set_item("kind", error.kind())?;
    set_fields! { error, facts;
        Zero { what }
        Ragged { what, len, size }
        WrongDimension { expected, actual }
        NotFinite { row, column, value }
        Overflow { derived, row, column }
        DoesNotFit { encoding, row, column, value, least, greatest }
        TooMany { what, asked, limit }
        UnknownId { id, len }
        WrongLength { what, expected, actual }
        ResultTooLarge { queries, k }
        NotTrained { call }
        NotEmpty { len }
        TooFewTrainingVectors { have, need }
        NotDivisible { what, number, by, parts }
        BadWeight { row, value }
        BadNumber { what, value, least }
        DuplicateId { id }
        OutOfRange { what, value, least, most }
        StaleFilter { vectors }
        Mismatch { what, expected, actual }
        Incompatible { what }
        RecallOutOfReach { target, best, widest }
        NoTrueNeighbors { queries, vectors }
        NotOrthogonal { dim, len, error }
        BadRow { what, row, value, least, most }
        NotInDeviceMemory { index }
        BadMemory { what }
        NotConnected { to, from_size, to_size }
        OutOfDeviceMemory { device, asked, available }
        OutOfHostMemory { asked }
        PtxRefused { module, code, log }
        Driver { call, device, code }
        DeviceFailed { shard, left }
        ShardLost { shard, replicas }
        LaunchLimit { kernel, what, asked, limit }
        WrongSelection { row }
        RankFailed { rank, reason }
    }
    match error {
        Error::NotFinite { input, .. } => text(facts, "input", input),
        // A keyword of Python cannot be an attribute in the usual way; `getattr(error, "from")` reads it.
        Error::NotConnected { from, .. } => facts.set_item("from", from),
        Error::BadMemory { defect, .. } => text(facts, "defect", defect),
        Error::NoDevice { reason } => text(facts, "reason", reason),
        Error::DeviceFailed { device, .. } => text(facts, "device", device),
        Error::KernelViolation { violation } => text(facts, "violation", violation),
        Error::Refused(refusal) => {
            let reason = match refusal {
                Refusal::Full { .. } => "full",
                Refusal::Expired => "expired",
                Refusal::Closed => "closed",
                _ => "other",
            };
            facts.set_item("reason", reason)
        }
        Error::Io { path, source } => {
            facts.set_item("path", path.to_string_lossy())?;
            facts.set_item("errno", source.raw_os_error())
        }
        Error::BadFile { path, defect } => {
            facts.set_item("path", path.to_string_lossy())?;
            text(facts, "defect", defect)
        }
        _ => Ok(()),
    }
}

/// The names of element types.
pub const ELEMENTS: [(&str, ElementType); 10] = [
    ("f32", ElementType::F32),
    ("float32", ElementType::F32),
    ("f16", ElementType::F16),
    ("float16", ElementType::F16),
    ("bf16", ElementType::Bf16),
    ("bfloat16", ElementType::Bf16),
    ("u8", ElementType::U8),
    ("uint8", ElementType::U8),
    ("i8", ElementType::I8),
    ("int8", ElementType::I8),
];

/// A value that parses from text.
pub fn parsed<V: std::str::FromStr<Err = UnknownName>>(py: Python<'_>, text: &str) -> PyResult<V> {
    text.parse().map_err(|error| unknown_name(py, &error))
}

/// A placement from its text.
pub fn placement(py: Python<'_>, text: &str) -> PyResult<warpann::Placement> {
    use warpann::placement::ParsePlacementError;
    text.parse().map_err(|error: ParsePlacementError| match &error {
        ParsePlacementError::Device(name) => unknown_text(py, text, name.known(), &error.to_string()),
        _ => unknown_text(py, text, &[], &error.to_string()),
    })
}
