//! The feature `serde`: Serialize and Deserialize for types with names, and for types with invariants.
//!
//! Other value types derive both traits. A value that is made from text is as valid as one that the library makes:
//! types with invariants check them, and settings are checked when they are used, as always.

/// Implements `Serialize` and `Deserialize` by `Display` and `FromStr`.
macro_rules! serialised_as_text {
    ($type:ty) => {
        #[cfg(feature = "serde")]
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serialised_as_text;

/// Implements `Deserialize` for a type with invariants: `$make` makes a value of the listed fields, or says why there
/// is none. The fields and their attributes are those of the derived `Serialize`.
macro_rules! deserialised {
    ($type:ident { $($(#[$attribute:meta])* $field:ident: $of:ty),* $(,)? } => $make:expr) => {
        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(serde::Deserialize)]
                struct Fields {
                    $($(#[$attribute])* $field: $of),*
                }
                let Fields { $($field),* } = Fields::deserialize(deserializer)?;
                let make: fn($($of),*) -> Result<$type, String> = $make;
                make($($field),*).map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use deserialised;

/// Floating-point numbers that may be infinite or NaN. Formats of text have no such numbers, so there they are the
/// texts `inf`, `-inf` and `NaN`. For `#[serde(with = "crate::serialised::Numbers")]`.
#[cfg(feature = "serde")]
pub(crate) trait Numbers: Sized {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
    fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

#[cfg(feature = "serde")]
mod numbers {
    use std::fmt;
    use std::marker::PhantomData;
    use std::str::FromStr;

    use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
    use serde::ser::{Serialize, Serializer};

    use super::Numbers;

    /// Numbers that serde writes.
    struct Written<'a, T>(&'a T);

    impl<T: Numbers> Serialize for Written<'_, T> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.0.serialize(serializer)
        }
    }

    /// Numbers that serde read.
    struct Read<T>(T);

    impl<'de, T: Numbers> Deserialize<'de> for Read<T> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            T::deserialize(deserializer).map(Self)
        }
    }

    /// The reader of a number or its text.
    struct OfText<T>(PhantomData<T>);

    macro_rules! numbers {
        ($type:ty) => {
            impl Numbers for $type {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    if self.is_finite() || !serializer.is_human_readable() {
                        return Serialize::serialize(self, serializer);
                    }
                    serializer.collect_str(self)
                }

                fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    if deserializer.is_human_readable() {
                        return deserializer.deserialize_any(OfText::<$type>(PhantomData));
                    }
                    Deserialize::deserialize(deserializer)
                }
            }

            impl Visitor<'_> for OfText<$type> {
                type Value = $type;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a number, \"inf\", \"-inf\" or \"NaN\"")
                }

                fn visit_f64<E: Error>(self, value: f64) -> Result<$type, E> {
                    Ok(value as $type)
                }

                fn visit_u64<E: Error>(self, value: u64) -> Result<$type, E> {
                    Ok(value as $type)
                }

                fn visit_i64<E: Error>(self, value: i64) -> Result<$type, E> {
                    Ok(value as $type)
                }

                fn visit_str<E: Error>(self, text: &str) -> Result<$type, E> {
                    let known = matches!(text, "inf" | "-inf" | "NaN").then(|| <$type>::from_str(text).ok()).flatten();
                    known.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
                }
            }
        };
    }

    numbers!(f32);
    numbers!(f64);

    impl<T: Numbers> Numbers for Vec<T> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_seq(self.iter().map(Written))
        }

        fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let read = <Vec<Read<T>> as Deserialize>::deserialize(deserializer)?;
            Ok(read.into_iter().map(|Read(value)| value).collect())
        }
    }

    impl<T: Numbers> Numbers for Option<T> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            Serialize::serialize(&self.as_ref().map(Written), serializer)
        }

        fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let read = <Option<Read<T>> as Deserialize>::deserialize(deserializer)?;
            Ok(read.map(|Read(value)| value))
        }
    }
}
