/*
 * roped.mjs - a client of roped in one file, to be copied: for browsers, and for
 * Node 18 and newer. It needs nothing else.
 *     node roped.mjs [http://127.0.0.1:8000]
 * makes the calls of example(), at the end. A page in a browser asks a daemon
 * that has the page's origin in --allowed_origins.
 */

const ARRAYS = { F32: Float32Array, F16: Uint16Array, BF16: Uint16Array, I32: Int32Array, I64: BigInt64Array }; // others: bytes

/* The bits of numbers as BF16, rounded to the nearest, ties to even; and back. */
export function toBF16(numbers) {
  const bits = new Uint32Array(Float32Array.from(numbers).buffer);
  return Uint16Array.from(bits, (b) => (b & 0x7fffffff) > 0x7f800000 ? (b >>> 16) | 64 : (b + 0x7fff + ((b >>> 16) & 1)) >>> 16);
}

export function fromBF16(bits) {
  return new Float32Array(Uint32Array.from(bits, (b) => b << 16).buffer);
}

/* A safetensors file: eight bytes with the length of a JSON header, the header,
 * the tensors. tensors is {name: {dtype, shape, data}}, data a typed array. */
export function encode(tensors) {
  const header = {}, parts = [];
  let end = 0;
  for (const [name, { dtype, shape, data }] of Object.entries(tensors)) {
    header[name] = { dtype, shape, data_offsets: [end, end += data.byteLength] };
    parts.push(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  }
  let text = JSON.stringify(header);
  text += ' '.repeat((8 - new TextEncoder().encode(text).length % 8) % 8);
  const json = new TextEncoder().encode(text), file = new Uint8Array(8 + json.length + end);
  new DataView(file.buffer).setBigUint64(0, BigInt(json.length), true);
  file.set(json, 8);
  parts.reduce((at, part) => (file.set(part, at), at + part.length), 8 + json.length);
  return file;
}

export function decode(buffer) {
  const start = 8 + Number(new DataView(buffer).getBigUint64(0, true)), tensors = {};
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
  delete header.__metadata__;
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(header))
    tensors[name] = { dtype, shape, data: new (ARRAYS[dtype] || Uint8Array)(buffer.slice(start + from, start + to)) };
  return tensors;
}

/* A refusal. message says it to people; code is for programs, and stays. */
export class RopedError extends Error {
  constructor(status, { error, code }) {
    super(error);
    Object.assign(this, { status, code });
  }
}

export class Roped {
  constructor(url = 'http://127.0.0.1:8000', { token, tries = 5 } = {}) {
    Object.assign(this, { url, token, tries });
  }

  /* A Response. A 503 is asked again after the seconds that it says. */
  async request(method, path, body) {
    const headers = this.token ? { Authorization: `Bearer ${this.token}` } : {};
    for (let left = this.tries; ; left--) {
      const response = await fetch(this.url + path, { method, headers, body });
      if (response.ok) return response;
      const text = await response.text();
      if (response.status !== 503 || left <= 1) {
        let refusal = { error: text, code: '' }; // of a proxy, perhaps
        try { refusal = JSON.parse(text); } catch { /* it is no JSON */ }
        throw new RopedError(response.status, refusal);
      }
      await new Promise((done) => setTimeout(done, 1000 * Number(response.headers.get('Retry-After') ?? 1)));
    }
  }

  /* Calls an operator. Parameters are those of 'ropectl describe OP', and
   * 'from.INPUT' for an input that is in a region. */
  async call(operator, tensors, parameters = {}) {
    const response = await this.request('POST', `/v1/${operator}?${new URLSearchParams(parameters)}`, encode(tensors));
    return decode(await response.arrayBuffer());
  }

  /* Leaves a tensor on the server under a name. */
  async putRegion(name, tensor) {
    await this.request('PUT', `/v1/regions/${name}`, encode({ [name]: tensor }));
  }

  async deleteRegion(name) {
    await this.request('DELETE', `/v1/regions/${name}`);
  }
}

/* RMSNorm of two rows with weights that stay on the server, then a mistake. */
export async function example(url) {
  const roped = new Roped(url), x = [1, 2, 3, 4, -1, 0, 1, 0], weight = [1, 2, 1, 2];
  await roped.putRegion('example.js', { dtype: 'BF16', shape: [4], data: toBF16(weight) });
  const { y } = await roped.call('rmsnorm', { x: { dtype: 'BF16', shape: [2, 4], data: toBF16(x) } }, { eps: 0, 'from.weight': 'example.js' });
  await roped.deleteRegion('example.js');
  const found = [...fromBF16(y.data)], rms = [0, 4].map((i) => Math.sqrt(x.slice(i, i + 4).reduce((sum, v) => sum + v * v / 4, 0)));
  const expected = x.map((v, i) => v / rms[i >> 2] * weight[i % 4]);
  if (!found.every((v, i) => Math.abs(v - expected[i]) <= Math.abs(expected[i]) / 256)) throw new Error(`${found}, expected ${expected}`);
  let refusal;
  try { await roped.call('rms_norm', {}); } catch (error) { refusal = error; }
  if (refusal?.code !== 'no_operator') throw refusal ?? new Error('not refused');
  return `y = ${found.join(' ')}\nrefused with ${refusal.status} ${refusal.code}: ${refusal.message}`;
}

if (typeof process !== 'undefined' && process.argv?.[1]?.endsWith('roped.mjs'))
  console.log(await example(process.argv[2]));
