//! The compressed V2 encoding of a histogram, and histograms that stay in it: an interval of a log is a hundred bytes of it,
//! and some 270 KB once its counters are laid out, so that a log of hours fits into memory only as it was read.
//!
//! It is checked before anything is made of it: a header of a few bytes can ask for gigabytes of counters, and a payload can
//! be shorter or longer than it says. Nothing is counted that was not there.
//!
//! Compressed: cookie, length, and in zlib the cookie of the inner encoding, the length of its payload, an offset that is 0,
//! digits, the lowest and the highest value, a ratio that is 1, the payload. It has one zigzag number after the other, of 1
//! to 9 bytes: a count of the next counter, or below 0 how many counters are 0.

use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};
use std::io::Read as _;

const COOKIE: u32 = 0x1c84_9313;
const COOKIE_COMPRESSED: u32 = 0x1c84_9314;
const HEADER_BYTES: usize = 40;
/// Bytes of a number of the payload, at most.
const NUMBER_BYTES_MAX: usize = 9;
/// Significant digits, at most: other tools write 2 to 4, and each one more takes ten times the memory.
const DIGITS_MAX: u32 = 4;
/// Counters of a histogram, at most: 4 MB of them, with which 4 digits reach nine hours of nanoseconds.
const COUNTERS_MAX: u64 = 1 << 19;
/// Largest unit, as a power of two: the library works it out in floating point, which rounds larger ones.
const UNIT_MAX: u32 = 40;
/// Values of a histogram, at most: what rates and means can still be worked out of.
pub const COUNT_MAX: u64 = 1 << 53;

/// A histogram of a log, as bytes. They were checked, and so have the values that they had then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EncodedHistogram {
    bytes: Box<[u8]>,
    count: u64,
}

impl EncodedHistogram {
    /// Checks bytes, all of which must be the histogram; the error says what is wrong with it.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, String> {
        let (bounds, payload) = unpacked(&bytes)?;
        let counters = bounds.counters();
        let (mut count, mut numbers) = (0u64, Numbers { payload, at: 0, index: 0 });
        for (index, of_counter) in &mut numbers {
            if index >= counters {
                return Err(format!("it counts past the last one of its {counters} counters"));
            }
            count = count.saturating_add(of_counter);
        }
        if numbers.at < numbers.payload.len() {
            return Err("its payload is cut within a number".into());
        }
        if numbers.index > counters {
            return Err(format!("its payload goes past the last one of its {counters} counters"));
        }
        if count > COUNT_MAX {
            return Err(format!("it counts {count} values, where {COUNT_MAX} are the most"));
        }
        Ok(Self { bytes: bytes.into_boxed_slice(), count })
    }

    /// Encodes a histogram; refuses one that [`Self::from_bytes`] would refuse.
    pub fn new(histogram: &Histogram<u64>) -> Result<Self, String> {
        let mut bytes = Vec::new();
        let written = V2DeflateSerializer::new().serialize(histogram, &mut bytes);
        written.map_err(|error| error.to_string())?;
        Self::from_bytes(bytes)
    }

    /// The encoding.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many values it has.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.count
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The values, each the least one that its counter stands for, and how often each was recorded.
    pub fn recorded(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let unpacked = unpacked(&self.bytes).ok().into_iter();
        unpacked.flat_map(|(bounds, payload)| {
            let counts = Numbers { payload, at: 0, index: 0 }.filter(|(_, count)| *count > 0);
            counts.map(move |(index, count)| (bounds.value(index), count))
        })
    }

    /// Lays out the counters.
    ///
    /// # Errors
    /// Where the library cannot; what was checked it can.
    pub fn decode(&self) -> Result<Histogram<u64>, String> {
        let (Bounds { low, high, digits }, _) = unpacked(&self.bytes)?;
        let mut histogram =
            Histogram::new_with_bounds(low, high, digits).map_err(|error| error.to_string())?;
        self.add_to(&mut histogram)?;
        Ok(histogram)
    }

    /// Adds its values to a sum.
    ///
    /// # Errors
    /// Where a value is larger than the sum can tell apart, or where there are more values than can be worked with.
    pub fn add_to(&self, sum: &mut Histogram<u64>) -> Result<(), String> {
        if sum.len().saturating_add(self.count) > COUNT_MAX {
            return Err(format!("they count more than {COUNT_MAX} values; are they of one test?"));
        }
        for (value, count) in self.recorded() {
            sum.record_n(value, count).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// What a histogram can tell apart.
#[derive(Clone, Copy)]
struct Bounds {
    low: u64,
    high: u64,
    digits: u8,
}

impl Bounds {
    fn new(low: u64, high: u64, digits: u32) -> Result<Self, String> {
        if digits > DIGITS_MAX {
            return Err(format!("it has {digits} significant digits, where {DIGITS_MAX} are the most"));
        }
        let bounds = Self { low, high, digits: digits as u8 };
        if low < 1 || high / 2 < low || bounds.unit() > UNIT_MAX {
            return Err(format!("it cannot tell values of {low} to {high} apart to {digits} digits"));
        }
        match bounds.counters() {
            0..=COUNTERS_MAX => Ok(bounds),
            counters => Err(format!(
                "values of {low} to {high} with {digits} digits take {counters} counters, where {COUNTERS_MAX} are the most"
            )),
        }
    }

    /// Power of two of the unit that values are counted in.
    const fn unit(&self) -> u32 {
        self.low.ilog2()
    }

    /// Steps of the first bucket; each bucket after it has half as many, twice as wide.
    const fn sub_buckets(&self) -> u64 {
        (2 * 10u64.pow(self.digits as u32)).next_power_of_two()
    }

    const fn counters(&self) -> u64 {
        let mut end = (self.sub_buckets() as u128) << self.unit();
        let mut buckets = 1;
        while end <= self.high as u128 {
            end <<= 1;
            buckets += 1;
        }
        (buckets + 1) * (self.sub_buckets() / 2)
    }

    /// The least value that a counter stands for.
    const fn value(&self, index: u64) -> u64 {
        let half = self.sub_buckets() / 2;
        let (bucket, step) = match index / half {
            0 => (0, index),
            bucket => (bucket as u32 - 1, index % half + half),
        };
        step << (bucket + self.unit())
    }
}

/// Reads the header and the payload.
fn unpacked(bytes: &[u8]) -> Result<(Bounds, Vec<u8>), String> {
    let short = || "it is cut short".to_owned();
    match word(bytes, 0) {
        None => Err(short()),
        Some(COOKIE) => {
            let header = bytes.first_chunk().ok_or_else(short)?;
            let (bounds, length) = head(header)?;
            let payload = &bytes[HEADER_BYTES..];
            of_length(payload.len(), length).map(|()| (bounds, payload.to_vec()))
        }
        Some(COOKIE_COMPRESSED) => {
            let length = word(bytes, 4).ok_or_else(short)?;
            of_length(bytes.len() - 8, length as usize)?;
            let mut inflated = ZlibDecoder::new(&bytes[8..]);
            let mut header = [0; HEADER_BYTES];
            inflated.read_exact(&mut header).map_err(|error| error.to_string())?;
            let (bounds, length) = head(&header)?;
            // One byte more than there should be is enough to see that there are more.
            let mut payload = Vec::new();
            let mut inflated = inflated.take(length as u64 + 1);
            inflated.read_to_end(&mut payload).map_err(|error| error.to_string())?;
            of_length(payload.len(), length).map(|()| (bounds, payload))
        }
        Some(_) => Err("it is not of version 2 of the encoding".into()),
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

fn of_length(there: usize, said: usize) -> Result<(), String> {
    match there.cmp(&said) {
        core::cmp::Ordering::Equal => Ok(()),
        core::cmp::Ordering::Less => Err(format!("{there} bytes are there of {said}")),
        core::cmp::Ordering::Greater => Err(format!("more bytes are there than the {said} that it says")),
    }
}

/// The bounds of a header, and the length of what follows it.
fn head(header: &[u8; HEADER_BYTES]) -> Result<(Bounds, usize), String> {
    let word = |at| word(header, at).unwrap_or_default();
    let long = |at| u64::from(word(at)) << 32 | u64::from(word(at + 4));
    if word(0) != COOKIE {
        return Err("it is not of version 2 of the encoding".into());
    }
    if word(8) != 0 || long(32) != 1f64.to_bits() {
        return Err("its values are shifted or scaled, which is not supported".into());
    }
    let bounds = Bounds::new(long(16), long(24), word(12))?;
    let (length, most) = (word(4) as usize, bounds.counters() as usize * NUMBER_BYTES_MAX);
    if length > most {
        return Err(format!("its payload says {length} bytes, where its counters take {most} at most"));
    }
    Ok((bounds, length))
}

/// Counters and their counts; what is no whole number at the end of the payload stays.
struct Numbers {
    payload: Vec<u8>,
    at: usize,
    index: u64,
}

impl Iterator for Numbers {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        loop {
            let (number, length) = number(self.payload.get(self.at..)?)?;
            self.at += length;
            let index = self.index;
            match u64::try_from(number) {
                Ok(count) => {
                    self.index = index.saturating_add(1);
                    return Some((index, count));
                }
                Err(_) => self.index = index.saturating_add(number.unsigned_abs()),
            }
        }
    }
}

/// The number at the start, and its length.
fn number(bytes: &[u8]) -> Option<(i64, usize)> {
    let mut value = 0u64;
    for place in 0..NUMBER_BYTES_MAX {
        let byte = u64::from(*bytes.get(place)?);
        let last = place + 1 == NUMBER_BYTES_MAX;
        value |= if last { byte } else { byte & 0x7f } << (7 * place);
        if last || byte & 0x80 == 0 {
            let signed = (value >> 1) as i64 ^ -((value & 1) as i64);
            return Some((signed, place + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use hdrhistogram::serialization::V2Serializer;
    use proptest::prelude::*;
    use std::io::Write as _;

    fn plain(low: u64, high: u64, digits: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = COOKIE.to_be_bytes().to_vec();
        for word in [payload.len() as u32, 0, digits] {
            bytes.extend(word.to_be_bytes());
        }
        for long in [low, high, 1f64.to_bits()] {
            bytes.extend(long.to_be_bytes());
        }
        bytes.extend(payload);
        bytes
    }

    fn compressed(plain: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(plain).unwrap();
        let inner = encoder.finish().unwrap();
        [&COOKIE_COMPRESSED.to_be_bytes()[..], &(inner.len() as u32).to_be_bytes(), &inner].concat()
    }

    #[track_caller]
    fn fails(plain: &[u8], says: &str) {
        for bytes in [plain, &compressed(plain)] {
            let error = EncodedHistogram::from_bytes(bytes.to_vec()).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn counters_beyond_measure_are_refused_before_they_are_laid_out() {
        fails(&plain(1, u64::MAX >> 1, 5, &[2]), "5 significant digits, where 4 are the most");
        fails(&plain(1, u64::MAX >> 1, 4, &[2]), "take 819200 counters, where 524288 are the most");
        fails(&plain(1, u64::MAX, u32::MAX, &[2]), "significant digits");
        fails(&plain(0, 10, 3, &[2]), "cannot tell values of 0 to 10 apart");
        fails(&plain(8, 10, 3, &[2]), "cannot tell values of 8 to 10 apart");
        fails(&plain(1 << 62, 1 << 63, 3, &[2]), "cannot tell");
        let mut long = plain(1, 100, 1, &[2]);
        long[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
        fails(&long, "its payload says 4294967295 bytes");
    }

    #[test]
    fn a_payload_has_the_length_that_it_says() {
        // Three values, of which a reader of only the first bytes would see one.
        let good = plain(1, 100, 2, &[2, 2, 2]);
        assert_eq!(EncodedHistogram::from_bytes(good.clone()).unwrap().len(), 3);
        for (length, says) in [(1, "more bytes are there than the 1"), (4, "3 bytes are there of 4")] {
            let mut bad = good.clone();
            bad[7] = length;
            fails(&bad, says);
        }
        let packed = compressed(&good);
        let error = |bytes: &[u8]| EncodedHistogram::from_bytes(bytes.to_vec()).unwrap_err();
        assert!(error(&[&packed[..], &[0]].concat()).contains("more bytes are there"));
        assert!(error(&packed[..packed.len() - 1]).contains("bytes are there of"));
        fails(&plain(1, 100, 2, &[2, 0x82]), "cut within a number");
    }

    #[test]
    fn what_is_counted_stays_within_the_counters_and_what_can_be_worked_with() {
        let most = [0xff; NUMBER_BYTES_MAX];
        // The least number there is, as many counters of nothing.
        fails(&plain(1, 100, 2, &most), "past the last one of its 256 counters");
        let mut count = most;
        count[0] = 0xfe;
        fails(&plain(1, 100, 2, &count), "counts 9223372036854775807 values");
        fails(
            &plain(1, 100, 2, &[&count[..], &count, &count].concat()),
            "where 9007199254740992 are the most",
        );
        // 256 counters of nothing are all of them; then one more.
        fails(&plain(1, 100, 2, &[0xff, 0x03, 2]), "counts past the last one of its 256");
    }

    #[test]
    fn sums_do_not_overflow() {
        let mut half = Histogram::<u64>::new_with_bounds(1, 100, 2).unwrap();
        half.record_n(7, COUNT_MAX / 2).unwrap();
        let encoded = EncodedHistogram::new(&half).unwrap();
        encoded.add_to(&mut half).unwrap();
        assert_eq!(half.len(), COUNT_MAX);
        assert!(encoded.add_to(&mut half).unwrap_err().contains("more than 9007199254740992 values"));
        assert_eq!(half.len(), COUNT_MAX);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_is_what_the_library_makes_of_it(
            low in 1u64..5_000, high in 10_000u64..1 << 45, digits in 0u8..=3,
            values in proptest::collection::vec((0u64..1 << 45, 1u64..1_000_000), 0..50),
        ) {
            let mut histogram = Histogram::<u64>::new_with_bounds(low, high, digits).unwrap();
            values.iter().for_each(|(value, count)| histogram.saturating_record_n(*value, *count));
            let mut plain = Vec::new();
            V2Serializer::new().serialize(&histogram, &mut plain).unwrap();
            let encoded = [EncodedHistogram::from_bytes(plain).unwrap(), EncodedHistogram::new(&histogram).unwrap()];
            for encoded in encoded {
                prop_assert_eq!((encoded.len(), encoded.is_empty()), (histogram.len(), histogram.is_empty()));
                prop_assert_eq!(unpacked(encoded.as_bytes()).unwrap().0.counters(), histogram.distinct_values() as u64);
                let told: Vec<_> = histogram
                    .iter_recorded()
                    .map(|at| (histogram.lowest_equivalent(at.value_iterated_to()), at.count_at_value()))
                    .collect();
                prop_assert_eq!(encoded.recorded().collect::<Vec<_>>(), told);
                prop_assert_eq!(encoded.decode().unwrap(), histogram.clone());
            }
        }

        #[test]
        fn no_bytes_make_it_panic(payload in proptest::collection::vec(any::<u8>(), 0..60), low: u64, high: u64, digits in 0u32..6) {
            if let Ok(encoded) = EncodedHistogram::from_bytes(plain(low, high, digits, &payload)) {
                prop_assert_eq!(encoded.decode().unwrap().len(), encoded.len());
            }
        }
    }
}
