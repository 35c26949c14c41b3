//! The placement of an index on several devices. Replicas search more queries at a time; shards hold more vectors.
//!
//! ```text
//!              shard 0   shard 1          every shard: a part of the vectors
//! replica 0    gpu:0     gpu:1            every replica: all of the vectors
//! replica 1    gpu:2     gpu:3            each device answers a part of the queries, over a part of the vectors
//! ```
//!
//! (Johnson, Douze and Jégou, "Billion-scale similarity search with GPUs", section 5.4.) Results have the same bits as
//! on one device.

mod device;

use std::fmt;
use std::str::FromStr;

pub use self::device::Device;
use crate::serialised::serialised_as_text;
use crate::validate::check_divisible;
use crate::{Result, UnknownName};

/// One or more devices, arranged as replicas. Each replica has all vectors; its devices are shards, which have a part
/// of the vectors each. A device may occur several times, so `cpu,cpu` tries out on any machine what several GPUs do.
///
/// As text (command line, configuration): replicas with commas between them, shards of a replica with plus signs.
///
/// | text | meaning |
/// |---|---|
/// | `gpu:0` | one device |
/// | `gpu:0,gpu:1` | two replicas: all vectors on both, queries divided between them |
/// | `gpu:0+gpu:1` | two shards: half of the vectors on each |
/// | `gpu:0+gpu:1,gpu:2+gpu:3` | two replicas of two shards |
///
/// ```
/// use warpann::{Device, FlatIndex, Placement};
///
/// let placement: Placement = "cpu+cpu,cpu+cpu".parse()?;
/// assert_eq!((placement.replicas(), placement.shards()), (2, 2));
/// assert_eq!(placement, Placement::new(vec![Device::Cpu; 4], 2)?);
/// assert_eq!(placement.to_string(), "cpu+cpu,cpu+cpu");
///
/// let mut index = FlatIndex::<f32>::builder(1).device(placement).build()?;
/// index.add(&[0.0, 1.0, 2.0, 3.0, 4.0])?;
/// assert_eq!(index.search(&[2.1], 3)?.ids, [2, 3, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The devices, replica after replica; at least one.
    devices: Vec<Device>,
    /// Number of devices of a replica; divides the number of devices.
    shards: usize,
}

impl Placement {
    /// A placement on `devices`, replica after replica of `shards` devices each. If `shards` is 1, all devices are
    /// replicas; if it is the number of devices, all are shards of one replica.
    ///
    /// # Errors
    /// [`Error::NotDivisible`](crate::Error::NotDivisible) if there is no device or `shards` does not divide the number
    /// of devices.
    pub fn new(devices: Vec<Device>, shards: usize) -> Result<Placement> {
        check_divisible("number of devices", devices.len(), "shards", shards)?;
        Ok(Placement { devices, shards })
    }

    /// All devices, replica after replica.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Number of shards of each replica, which together hold all vectors.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Number of replicas, each of which holds all vectors.
    pub fn replicas(&self) -> usize {
        self.devices.len() / self.shards
    }

    /// The first device. It does the work that is too small to divide.
    pub(crate) fn first(&self) -> Device {
        self.devices[0]
    }

    /// The only device; none if there are several.
    pub(crate) fn single(&self) -> Option<Device> {
        if self.devices.len() == 1 { Some(self.devices[0]) } else { None }
    }

    /// The same arrangement with each device replaced by that of `devices`.
    pub(crate) fn resolved(&self, devices: Vec<Device>) -> Placement {
        debug_assert_eq!(devices.len(), self.devices.len());
        Placement { devices, shards: self.shards }
    }
}

impl From<Device> for Placement {
    fn from(device: Device) -> Self {
        Placement { devices: vec![device], shards: 1 }
    }
}

impl Default for Placement {
    fn default() -> Self {
        Device::default().into()
    }
}

impl PartialEq<Device> for Placement {
    fn eq(&self, device: &Device) -> bool {
        self.single() == Some(*device)
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, device) in self.devices.iter().enumerate() {
            let separator = match at {
                0 => "",
                _ if at % self.shards == 0 => ",",
                _ => "+",
            };
            write!(f, "{separator}{device}")?;
        }
        Ok(())
    }
}

impl FromStr for Placement {
    type Err = ParsePlacementError;

    fn from_str(text: &str) -> Result<Self, ParsePlacementError> {
        let (mut devices, mut shards) = (Vec::new(), 0);
        for (replica, places) in text.split(',').enumerate() {
            let before = devices.len();
            for place in places.split('+') {
                devices.push(place.parse::<Device>()?);
            }
            let actual = devices.len() - before;
            if replica == 0 {
                shards = actual;
            } else if actual != shards {
                return Err(ParsePlacementError::Uneven { replica, actual, expected: shards });
            }
        }
        Ok(Placement { devices, shards })
    }
}

serialised_as_text!(Placement);

/// A text that is not a placement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParsePlacementError {
    /// A part of the text is not the name of a device.
    #[error("{0}; write commas between replicas and plus signs between the shards of a replica")]
    Device(#[from] UnknownName),
    /// The replicas have different numbers of shards.
    #[error("replica {replica} has {actual} shards, the first has {expected}")]
    Uneven {
        /// Number of the replica that differs, from 0.
        replica: usize,
        /// Number of shards of that replica.
        actual: usize,
        /// Number of shards of the first replica.
        expected: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn text_round_trips() {
        for (text, replicas, shards) in [
            ("auto", 1, 1),
            ("gpu:0,gpu:1,gpu:2", 3, 1),
            ("cpu+emulator", 1, 2),
            ("gpu:0+gpu:1,gpu:2+gpu:3", 2, 2),
            ("cpu+cpu+cpu,cpu+cpu+cpu", 2, 3),
        ] {
            let placement: Placement = text.parse().unwrap();
            assert_eq!((placement.replicas(), placement.shards()), (replicas, shards), "{text}");
            assert_eq!(placement.to_string(), text);
            assert_eq!(Placement::new(placement.devices().to_vec(), shards).unwrap(), placement);
        }
        assert_eq!("gpu".parse::<Placement>().unwrap(), Device::Gpu(0));
        assert_ne!("gpu,gpu:1".parse::<Placement>().unwrap(), Device::Gpu(0));
    }

    #[test]
    fn what_is_no_placement_is_refused() {
        for text in ["", ",", "cpu,", "+cpu", "cpu, cpu", "cpu;cpu", "gpu:0-3", "cpu++cpu"] {
            let error = text.parse::<Placement>().unwrap_err();
            assert!(matches!(error, ParsePlacementError::Device(_)), "{text}: {error}");
        }
        let error = "cpu+cpu,cpu".parse::<Placement>().unwrap_err();
        assert_eq!(error.to_string(), "replica 1 has 1 shards, the first has 2");
        for (devices, shards) in [(0, 0), (0, 1), (3, 0), (3, 2), (2, 4)] {
            let error = Placement::new(vec![Device::Cpu; devices], shards).unwrap_err();
            assert!(
                matches!(error, Error::NotDivisible { what: "number of devices", number: d, by: "shards", parts: s }
                    if (d, s) == (devices, shards))
            );
        }
    }
}
