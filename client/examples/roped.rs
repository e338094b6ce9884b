//! roped.rs - a client of roped in one file, to be copied: Rust 1.63 and newer,
//! and its standard library alone, which has neither TLS nor JSON: use a proxy on
//! this host, or crates, for https.
//!     rustc --edition 2021 roped.rs && ./roped [127.0.0.1:8000]
//! makes the calls of main, at the end.
use std::io::{Error, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::{env, fmt, str, thread, time::Duration};

/// One tensor of a safetensors file. dtype is F32, BF16, I64, ...
#[derive(Debug, Clone)]
pub struct Tensor {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<usize>,
    pub data: Vec<u8>, // little-endian
}

impl Tensor {
    /// Of numbers, rounded to the nearest, ties to even.
    pub fn bf16(name: &str, shape: &[usize], numbers: &[f32]) -> Tensor {
        let round = |number: &f32| match (number.is_nan(), number.to_bits()) {
            (true, bits) => (bits >> 16) as u16 | 64,
            (false, bits) => ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16,
        };
        let data = numbers.iter().flat_map(|number| round(number).to_le_bytes()).collect();
        Tensor { name: name.into(), dtype: "BF16".into(), shape: shape.to_vec(), data }
    }

    /// The numbers of a BF16 tensor.
    pub fn floats(&self) -> Vec<f32> {
        let widen = |two: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([two[0], two[1]])) << 16);
        self.data.chunks_exact(2).map(widen).collect()
    }
}

/// A safetensors file: eight bytes with the length of a JSON header, the header,
/// the tensors. Names are those of operators and regions: nothing is escaped.
pub fn encode(tensors: &[Tensor]) -> Vec<u8> {
    let (mut end, mut rows) = (0, Vec::new());
    for Tensor { name, dtype, shape, data } in tensors {
        let start = end;
        end += data.len();
        rows.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#));
    }
    let header = format!("{{{}}}", rows.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    tensors.iter().for_each(|tensor| file.extend(&tensor.data));
    file
}

/// What stands between two texts.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    text.split_once(start)?.1.split_once(end).map(|parts| parts.0)
}

fn integers(text: &str) -> Option<Vec<usize>> {
    text.split(',').filter(|word| !word.trim().is_empty()).map(|word| word.trim().parse().ok()).collect()
}

/// The tensor of this name in an answer, whose header has no spaces.
pub fn decode(file: &[u8], name: &str) -> Option<Tensor> {
    let start = 8 + usize::try_from(u64::from_le_bytes(file.get(..8)?.try_into().ok()?)).ok()?;
    let row = between(str::from_utf8(file.get(8..start)?).ok()?, &format!("\"{name}\":{{"), "}")?;
    let shape = integers(between(row, "\"shape\":[", "]")?)?;
    let place = integers(between(row, "\"data_offsets\":[", "]")?)?;
    let data = file.get(start + place.first()?..start + place.get(1)?)?.to_vec();
    Some(Tensor { name: name.into(), dtype: between(row, "\"dtype\":\"", "\"")?.into(), shape, data })
}

/// error is for people; code is for programs, and stays.
#[derive(Debug)]
pub struct Refusal {
    pub status: u16,
    pub code: String,
    pub error: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{} {}: {}", self.status, self.code, self.error)
    }
}

impl std::error::Error for Refusal {}
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Asks the daemon at an address, with a token where it wants one.
pub struct Client {
    pub address: String,
    pub token: Option<String>,
    pub tries: u32,
}

impl Client {
    /// Status, head and body of one request, on a connection of its own.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> Result<(u16, String, Vec<u8>)> {
        let token = self.token.iter().map(|token| format!("Authorization: Bearer {token}\r\n")).collect::<String>();
        let (address, length) = (&self.address, body.len());
        let mut stream = TcpStream::connect(address)?;
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{token}Content-Length: {length}\r\nConnection: close\r\n\r\n")?;
        let sent = stream.write_all(body); // a refusal may come before the end of it
        let mut answer = Vec::new();
        if stream.read_to_end(&mut answer).is_err() || answer.is_empty() {
            sent?;
        }
        let broken = || Error::new(ErrorKind::InvalidData, "the answer is no HTTP");
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(broken)?;
        let head = String::from_utf8(answer[..end].to_vec())?;
        let status = head.split(' ').nth(1).ok_or_else(broken)?.parse()?;
        Ok((status, head + "\r\n", answer.split_off(end + 4)))
    }

    /// The body of the answer. A 503 is asked again after the seconds that it says.
    pub fn request(&self, method: &str, path: &str, body: &[u8]) -> Result<Vec<u8>> {
        for left in (0..self.tries).rev() {
            let (status, head, answer) = self.ask(method, path, body)?;
            if status < 300 {
                return Ok(answer);
            }
            if status != 503 || left == 0 {
                let text = String::from_utf8_lossy(&answer);
                let find = |start| between(&text, start, "\"").map(String::from); // a proxy sends none
                let error = find("\"error\":\"").unwrap_or_else(|| text.to_string());
                return Err(Refusal { status, code: find("\"code\":\"").unwrap_or_default(), error }.into());
            }
            let seconds = between(&head, "Retry-After: ", "\r\n").and_then(|text| text.parse().ok());
            thread::sleep(Duration::from_secs(seconds.unwrap_or(1)));
        }
        Err("no tries".into())
    }
}

/// RMSNorm of two rows with weights that stay on the server, then a mistake.
fn main() -> Result<()> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8000".into());
    let client = Client { address, token: None, tries: 5 };
    let (x, weight) = ([1.0, 2.0, 3.0, 4.0, -1.0, 0.0, 1.0, 0.0], [1.0, 2.0, 1.0, 2.0]);
    client.request("PUT", "/v1/regions/example.rs", &encode(&[Tensor::bf16("weight", &[4], &weight)]))?;
    let body = encode(&[Tensor::bf16("x", &[2, 4], &x)]);
    let answer = client.request("POST", "/v1/rmsnorm?eps=0&from.weight=example.rs", &body)?;
    client.request("DELETE", "/v1/regions/example.rs", b"")?;
    let found = decode(&answer, "y").ok_or("the answer has no y")?.floats();
    for (i, value) in found.iter().enumerate() {
        let rms = (x[i / 4 * 4..i / 4 * 4 + 4].iter().map(|v| v * v).sum::<f32>() / 4.0).sqrt();
        let expected = x[i] / rms * weight[i % 4];
        if (value - expected).abs() > expected.abs() / 256.0 {
            return Err(format!("element {i} is {value}, expected {expected}").into());
        }
    }
    println!("y = {found:?}");
    match client.request("POST", "/v1/rms_norm", &encode(&[])) {
        Err(error) if error.downcast_ref::<Refusal>().map_or(false, |it| it.code == "no_operator") => println!("refused with {error}"),
        other => return Err(format!("{other:?}, expected the code no_operator").into()),
    }
    Ok(())
}
