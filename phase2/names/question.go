package names

import (
	"encoding/binary"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	smallest = 512  // octets of a message of UDP that each client takes (RFC 1035 section 2.3.4)
	largest  = 1232 // so that no network has to fragment it (the DNS flag day of 2020)

	badVersion = 16 // BADVERS of RFC 6891: the upper bits of the code are in the OPT record
)

// question is what is asked, in lower case and without the root's dot. The class is IN.
type question struct {
	name string
	kind dnsmessage.Type
}

// query is a message of the guest.
type query struct {
	header dnsmessage.Header
	asked  []dnsmessage.Question // one, or none: the message is malformed
	edns   bool
	size   int              // octets that the guest takes by UDP
	code   dnsmessage.RCode // of what is wrong with the query; 0: nothing
}

// parseQuery reads a message. Not ok: it gets no reply.
func parseQuery(message []byte) (q query, ok bool) {
	var p dnsmessage.Parser
	header, err := p.Start(message)
	if err != nil || header.Response {
		return q, false
	}
	q.header, q.size, q.code = header, smallest, dnsmessage.RCodeFormatError
	if header.OpCode != 0 {
		q.code = dnsmessage.RCodeNotImplemented
		return q, true
	}
	asked, err := p.Question()
	if err != nil {
		return q, true
	}
	if _, err := p.Question(); err != dnsmessage.ErrSectionDone {
		return q, true
	}
	q.asked = []dnsmessage.Question{asked}
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q, true
	}
	version := uint32(0)
	for {
		h, err := p.AdditionalHeader()
		if err == dnsmessage.ErrSectionDone {
			break
		}
		if err != nil || h.Type == dnsmessage.TypeOPT && q.edns || p.SkipAdditional() != nil {
			return q, true
		}
		if h.Type == dnsmessage.TypeOPT {
			q.edns, q.size, version = true, min(max(int(h.Class), smallest), largest), h.TTL>>16&0xff
		}
	}
	q.code = dnsmessage.RCodeSuccess
	if version != 0 {
		q.code = badVersion
	}
	return q, true
}

func (q query) question() question {
	return question{fold(q.asked[0].Name), q.asked[0].Type}
}

// fold is the name in lower case, without the root's dot.
func fold(name dnsmessage.Name) string {
	return strings.ToLower(strings.TrimSuffix(name.String(), "."))
}

// answer is the answer to a question.
type answer struct {
	code   dnsmessage.RCode
	bodies []dnsmessage.ResourceBody
	until  time.Time // end of its life
	why    reason
}

// reason is why the guest gets less than it asked for, as an extended error (RFC 8914). Text "": it gets all.
type reason struct {
	code uint16
	text string
}

const (
	blocked     = 15 // codes of RFC 8914
	unreachable = 22
)

// reply is the message with the answer. Of one that has more than most octets, the guest gets the beginning alone, and
// asks by TCP.
func (q query) reply(a answer, now time.Time, most int) []byte {
	packed, err := q.pack(a, now, false)
	if err != nil {
		packed, err = q.pack(answer{code: dnsmessage.RCodeServerFailure}, now, false)
	} else if len(packed) > most {
		packed, err = q.pack(answer{code: a.code}, now, true)
	}
	if err != nil {
		return nil
	}
	return packed
}

func (q query) pack(a answer, now time.Time, truncated bool) ([]byte, error) {
	m := dnsmessage.Message{Questions: q.asked, Header: dnsmessage.Header{ID: q.header.ID, OpCode: q.header.OpCode, Response: true, Truncated: truncated,
		RecursionDesired: q.header.RecursionDesired, RecursionAvailable: true, CheckingDisabled: q.header.CheckingDisabled, RCode: a.code & 0xf}}
	left := uint32(max(0, a.until.Sub(now)) / time.Second)
	for _, body := range a.bodies {
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.asked[0].Name, Class: dnsmessage.ClassINET, TTL: left}, Body: body})
	}
	if q.edns {
		opt := dnsmessage.Resource{Body: &dnsmessage.OPTResource{}}
		if err := opt.Header.SetEDNS0(largest, a.code, false); err != nil {
			return nil, err
		}
		if a.why.text != "" {
			data := append(binary.BigEndian.AppendUint16(nil, a.why.code), a.why.text...)
			opt.Body = &dnsmessage.OPTResource{Options: []dnsmessage.Option{{Code: 15, Data: data}}}
		}
		m.Additionals = []dnsmessage.Resource{opt}
	}
	return m.Pack()
}
