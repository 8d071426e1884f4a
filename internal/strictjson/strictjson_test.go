package strictjson_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/strictjson"
)

// document has a field of every kind that records and configurations have.
type document struct {
	Text   string            `json:"text"`
	Number int               `json:"number"`
	Port   uint16            `json:"port"`
	Flag   bool              `json:"flag"`
	Part   *part             `json:"part"`
	Whole  part              `json:"whole"`
	List   []part            `json:"list"`
	Codes  map[uint8]string  `json:"codes"`
	Parts  map[uint16]part   `json:"parts"`
	Nested map[uint8][]int64 `json:"nested"`
	Own    own               `json:"own"`
	*rest
}

type part struct {
	Address netip.Addr   `json:"address"` // a TextUnmarshaler
	Network netip.Prefix `json:"network"`
}

type rest struct {
	Text  string `json:"text"` // hidden by document's
	Other string `json:"other"`
}

// own decodes itself: an object with the member "number", not negative.
type own struct{ number int }

func (o *own) UnmarshalJSON(text []byte) error {
	var fields struct {
		Number int `json:"number"`
	}
	if err := strictjson.Unmarshal("", text, &fields); err != nil {
		return err
	}
	if fields.Number < 0 {
		return &strictjson.Error{Field: "number", Reason: "negative"}
	}
	o.number = fields.Number
	return nil
}

func newDocument() document { return document{rest: &rest{}} }

const full = `{"text": "a", "number": -1, "port": 65535, "flag": true, "part": {"address": "::1", "network": "10.0.0.0/8"},
	"whole": {}, "list": [{}, {"address": "192.0.2.1"}], "codes": {"0": "a", "255": "b"}, "parts": {"65535": {}},
	"nested": {"7": [1, -2]}, "own": {"number": 7}, "other": "b"}`

func TestUnmarshal(t *testing.T) {
	have := newDocument()
	if err := strictjson.Unmarshal("", []byte(full), &have); err != nil {
		t.Fatal(err)
	}
	want := document{
		Text: "a", Number: -1, Port: 65535, Flag: true,
		Part: &part{netip.MustParseAddr("::1"), netip.MustParsePrefix("10.0.0.0/8")},
		List: []part{{}, {Address: netip.MustParseAddr("192.0.2.1")}}, Codes: map[uint8]string{0: "a", 255: "b"},
		Parts: map[uint16]part{65535: {}}, Nested: map[uint8][]int64{7: {1, -2}}, Own: own{7}, rest: &rest{Other: "b"},
	}
	if !reflect.DeepEqual(have, want) {
		t.Errorf("%+v, want %+v", have, want)
	}
}

// TestRefused: the error names the field.
func TestRefused(t *testing.T) {
	for text, want := range map[string]strictjson.Error{
		``:              {"at", "want an object"},
		`null`:          {"at", "want an object"},
		`[]`:            {"at", "want an object"},
		`{`:             {"at", "EOF"},
		`{} {}`:         {"at", "something follows"},
		`{"text":"a",}`: {"at", "invalid character"},
		`{"Text":"a"}`:  {"at.Text", `no such field in this version: did you mean "text"?`},
		`{"` + strings.Repeat("text", 17) + `":"a"}`: {"at." + strings.Repeat("text", 17), "no such field in this version"},
		`{"txt":"a"}`:                      {"at.txt", `did you mean "text"?`},
		`{"ohter":"a"}`:                    {"at.ohter", `did you mean "other"?`},
		`{"numbers":1}`:                    {"at.numbers", `did you mean "number"?`},
		`{"whole":{"adress":"::1"}}`:       {"at.whole.adress", `did you mean "address"?`},
		`{"":"a"}`:                         {"at", "no such field in this version"},
		`{"rest":{}}`:                      {"at.rest", "no such field in this version"},
		`{"mtu":1}`:                        {"at.mtu", "no such field in this version"},
		`{"flag":true,"flag":1}`:           {"at", `"flag" is given twice`},
		`{"text":null}`:                    {"at.text", "not null"},
		`{"text":7}`:                       {"at.text", "want a string, not a number"},
		`{"text":{"a":1}}`:                 {"at.text", "want a string, not an object"},
		`{"text":["a"]}`:                   {"at.text", "want a string, not a list"},
		`{"flag":1}`:                       {"at.flag", "want true or false, not a number"},
		`{"port":65536}`:                   {"at.port", "want a number from 0 to 65535, not 65536"},
		`{"port":-1}`:                      {"at.port", "want a number from 0 to 65535, not -1"},
		`{"port":"80"}`:                    {"at.port", "want a number from 0 to 65535, not a string"},
		`{"number":1.5}`:                   {"at.number", "want a whole number, not 1.5"},
		`{"number":true}`:                  {"at.number", "want a whole number, not true"},
		`{"nested":{"7":[1,1e99]}}`:        {"at.nested.7[1]", "want a whole number, not 1e99"},
		`{"list":null}`:                    {"at.list", "want a list"},
		`{"list":{}}`:                      {"at.list", "want a list"},
		`{"list":[{},{"address":"here"}]}`: {"at.list[1].address", `want an address, such as 10.1.0.7 or fd00::7, not "here"`},
		`{"part":{"network":"fd00::"}}`:    {"at.part.network", `want a network, such as 10.1.0.0/24 or fd00::/64, not "fd00::"`},
		`{"list":[{"address":1}]}`:         {"at.list[0].address", "want a string, not a number"},
		`{"part":{"network":null}}`:        {"at.part.network", "not null"},
		`{"codes":{"256":"a"}}`:            {"at.codes.256", "want a number from 0 to 255 as the name"},
		`{"codes":{"01":"a"}}`:             {"at.codes.01", "want a number"},
		`{"codes":{"1":"a","1":"b"}}`:      {"at.codes", `"1" is given twice`},
		`{"parts":{"1":{"a":1}}}`:          {"at.parts.1.a", "no such field in this version"},
		`{"own":{"number":-1}}`:            {"at.own.number", "negative"},
		`{"own":{"count":1}}`:              {"at.own.count", "no such field"},
		`{"own":null}`:                     {"at.own", "not null"},
	} {
		doc := newDocument()
		err := strictjson.Unmarshal("at", []byte(text), &doc)
		var have *strictjson.Error
		if !errors.As(err, &have) || have.Field != want.Field || !strings.Contains(have.Reason, want.Reason) || strings.HasSuffix(want.Reason, "version") && have.Reason != want.Reason {
			t.Errorf("%s: %v, want %s: ...%s...", text, err, want.Field, want.Reason)
		}
	}
}

// FuzzUnmarshal: what is accepted, encoding/json reads the same way; what is refused has an *Error.
func FuzzUnmarshal(f *testing.F) {
	for _, text := range []string{
		full, `{}`, `null`, `{"part":null}`, `{"list":[]}`, `{"codes":{}}`, `{"text":"\ud800"}`, `{"number":1e2}`,
		`{"te\u0078t":"a"}`, `{"flag":true,"flag":false}`, `{"whole":{"address":"fe80::1%a"}}`, `{"number":-0}`, ` {"text":"a"} `, "\v{}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		have := newDocument()
		if err := strictjson.Unmarshal("", text, &have); err != nil {
			var bad *strictjson.Error
			if !errors.As(err, &bad) || bad.Reason == "" {
				t.Fatalf("%T: %v, want an *Error with a reason", err, err)
			}
			return
		}
		want := newDocument()
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatalf("accepted, and encoding/json says: %v", err)
		}
		if !reflect.DeepEqual(have, want) {
			t.Fatalf("%+v, and encoding/json reads %+v", have, want)
		}
	})
}
