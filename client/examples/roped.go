// roped.go - a client of roped in one file, to be copied: Go 1.19 and newer, and
// its standard library alone.
//
//	go run roped.go [http://127.0.0.1:8000]
//
// makes the calls of main, at the end.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"
)

// Tensor is one tensor of a safetensors file. Dtype is F32, BF16, I64, ...
type Tensor struct {
	Dtype   string    `json:"dtype"`
	Shape   []int     `json:"shape"`
	Offsets [2]uint64 `json:"data_offsets"`
	Data    []byte    `json:"-"` // little-endian
}

// BF16 is a tensor of numbers, rounded to the nearest, ties to even.
func BF16(numbers []float32, shape ...int) Tensor {
	data := make([]byte, 0, 2*len(numbers))
	for _, number := range numbers {
		bits := math.Float32bits(number)
		if number == number {
			bits += 0x7fff + bits>>16&1
		} else {
			bits |= 1 << 22
		}
		data = append(data, byte(bits>>16), byte(bits>>24))
	}
	return Tensor{Dtype: "BF16", Shape: shape, Data: data}
}

// Floats are the numbers of a BF16 tensor.
func (t Tensor) Floats() []float32 {
	numbers := make([]float32, len(t.Data)/2)
	for i := range numbers {
		numbers[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(t.Data[2*i:])) << 16)
	}
	return numbers
}

// Encode makes a safetensors file: eight bytes with the length of a JSON header,
// the header, the tensors.
func Encode(tensors map[string]Tensor) ([]byte, error) {
	var data []byte
	for name, tensor := range tensors {
		tensor.Offsets[0] = uint64(len(data))
		data = append(data, tensor.Data...)
		tensor.Offsets[1] = uint64(len(data))
		tensors[name] = tensor
	}
	header, err := json.Marshal(tensors)
	file := make([]byte, 8, 8+len(header)+len(data))
	binary.LittleEndian.PutUint64(file, uint64(len(header)))
	return append(append(file, header...), data...), err
}

// Decode reads one. Data of its tensors are parts of file.
func Decode(file []byte) (map[string]Tensor, error) {
	tensors := map[string]Tensor{}
	if len(file) < 8 || binary.LittleEndian.Uint64(file) > uint64(len(file)-8) {
		return nil, fmt.Errorf("%d bytes are no safetensors file", len(file))
	}
	data := file[8+binary.LittleEndian.Uint64(file):]
	if err := json.Unmarshal(file[8:len(file)-len(data)], &tensors); err != nil {
		return nil, err
	}
	for name, tensor := range tensors {
		if tensor.Offsets[0] > tensor.Offsets[1] || tensor.Offsets[1] > uint64(len(data)) {
			return nil, fmt.Errorf("tensor '%s' is not in the file", name)
		}
		tensor.Data = data[tensor.Offsets[0]:tensor.Offsets[1]]
		tensors[name] = tensor
	}
	return tensors, nil
}

// Refusal is an error of the daemon. Text is for people; Code is for programs,
// and stays.
type Refusal struct {
	Status int    `json:"-"`
	Code   string `json:"code"`
	Text   string `json:"error"`
}

func (r *Refusal) Error() string { return fmt.Sprintf("%d %s: %s", r.Status, r.Code, r.Text) }

// Client asks the daemon at URL, with a token where it wants one.
type Client struct {
	URL, Token string
	Tries      int
	HTTP       http.Client
}

// Do makes a request. A 503 is asked again after the seconds that it says.
func (c *Client) Do(method, path string, body []byte) ([]byte, error) {
	for left := c.Tries; ; left-- {
		request, err := http.NewRequest(method, c.URL+path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		if c.Token != "" {
			request.Header.Set("Authorization", "Bearer "+c.Token)
		}
		response, err := c.HTTP.Do(request)
		if err != nil {
			return nil, err
		}
		answer, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode < 300 {
			return answer, err
		}
		if response.StatusCode != 503 || left <= 1 {
			refusal := &Refusal{Status: response.StatusCode, Text: string(answer)} // of a proxy, perhaps
			_ = json.Unmarshal(answer, refusal)
			return nil, refusal
		}
		seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
		if err != nil {
			seconds = 1
		}
		time.Sleep(time.Duration(seconds) * time.Second)
	}
}

// Call calls an operator. Parameters are those of 'ropectl describe OP', and
// from.INPUT for an input that is in a region.
func (c *Client) Call(operator string, tensors map[string]Tensor, parameters url.Values) (map[string]Tensor, error) {
	body, err := Encode(tensors)
	if err != nil {
		return nil, err
	}
	answer, err := c.Do("POST", "/v1/"+operator+"?"+parameters.Encode(), body)
	if err != nil {
		return nil, err
	}
	return Decode(answer)
}

// PutRegion leaves a tensor on the server under a name.
func (c *Client) PutRegion(name string, tensor Tensor) error {
	body, err := Encode(map[string]Tensor{name: tensor})
	if err == nil {
		_, err = c.Do("PUT", "/v1/regions/"+name, body)
	}
	return err
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// RMSNorm of two rows with weights that stay on the server, then a mistake.
func main() {
	client := Client{URL: "http://127.0.0.1:8000", Tries: 5}
	if len(os.Args) > 1 {
		client.URL = os.Args[1]
	}
	x, weight := []float32{1, 2, 3, 4, -1, 0, 1, 0}, []float32{1, 2, 1, 2}
	must(client.PutRegion("example.go", BF16(weight, 4)))
	out, err := client.Call("rmsnorm", map[string]Tensor{"x": BF16(x, 2, 4)}, url.Values{"eps": {"0"}, "from.weight": {"example.go"}})
	must(err)
	_, err = client.Do("DELETE", "/v1/regions/example.go", nil)
	must(err)
	found, rms := out["y"].Floats(), [2]float64{}
	for i, value := range x {
		rms[i/4] += float64(value*value) / 4
	}
	for i, value := range found {
		expected := float64(x[i]) / math.Sqrt(rms[i/4]) * float64(weight[i%4])
		if math.Abs(float64(value)-expected) > math.Abs(expected)/256 {
			must(fmt.Errorf("element %d is %g, expected %g", i, value, expected))
		}
	}
	fmt.Println("y =", found)
	_, err = client.Call("rms_norm", map[string]Tensor{}, nil)
	refusal, ok := err.(*Refusal)
	if !ok || refusal.Code != "no_operator" {
		must(fmt.Errorf("'%v', expected the code no_operator", err))
	}
	fmt.Println("refused with", refusal)
}
