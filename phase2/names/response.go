package names

import (
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/guestwire/guestwire/internal/pinmessage"
)

const (
	mostAliases = 16 // of a name that stands for another one, and so on
	mostRecords = 64 // of an answer without addresses
	mostRead    = 256
)

// response is what a resolver answers.
type response struct {
	code   dnsmessage.RCode
	bodies []dnsmessage.ResourceBody // of the asked type, and of the name or of the one that it stands for
	life   time.Duration
}

// verdict is what a message is for a question.
type verdict int

const (
	foreign   verdict = iota // no reply to it
	otherCase                // the reply, if nobody can have forged it
	truncated                // the beginning of the reply
	final                    // the reply
)

// parseResponse reads a message that may be the reply to the question.
func parseResponse(message []byte, id uint16, asked dnsmessage.Question) (r response, is verdict) {
	var p dnsmessage.Parser
	header, err := p.Start(message)
	if err != nil || !header.Response || header.OpCode != 0 || header.ID != id {
		return r, foreign
	}
	of, err := p.Question()
	if err != nil || of.Type != asked.Type || of.Class != asked.Class || fold(of.Name) != fold(asked.Name) {
		return r, foreign
	}
	if _, err := p.Question(); err != dnsmessage.ErrSectionDone {
		return r, foreign
	}
	is = final
	if of.Name != asked.Name {
		is = otherCase
	}
	if r.code = header.RCode; header.Truncated {
		return r, min(is, truncated)
	}
	records, err := parseAnswers(&p, asked.Type)
	if err != nil || p.SkipAllAuthorities() != nil || !skipAdditionals(&p, &r) {
		return r, foreign
	}
	if r.life = pinmessage.Shortest; r.code == dnsmessage.RCodeSuccess {
		r.choose(records, fold(asked.Name), asked.Type)
	}
	return r, is
}

// skipAdditionals skips these records, and reads the upper bits of the code. It reports whether all have the form.
func skipAdditionals(p *dnsmessage.Parser, r *response) bool {
	for {
		h, err := p.AdditionalHeader()
		if err != nil {
			return err == dnsmessage.ErrSectionDone
		}
		if h.Type == dnsmessage.TypeOPT {
			r.code = h.ExtendedRCode(r.code)
		}
		if p.SkipAdditional() != nil {
			return false
		}
	}
}

// records are those of an answer, by the name that they are of.
type records struct {
	aliases map[string]alias
	others  map[string][]dnsmessage.Resource
}

type alias struct {
	of  string
	ttl uint32
}

// parseAnswers returns the aliases and the records of the type, of the first ones. Records of other classes and types
// are left out.
func parseAnswers(p *dnsmessage.Parser, kind dnsmessage.Type) (records, error) {
	found := records{map[string]alias{}, map[string][]dnsmessage.Resource{}}
	for read := 0; ; read++ {
		h, err := p.AnswerHeader()
		if err == dnsmessage.ErrSectionDone {
			return found, nil
		}
		if err != nil {
			return found, err
		}
		if read >= mostRead || h.Class != dnsmessage.ClassINET || h.Type != kind && h.Type != dnsmessage.TypeCNAME {
			if err := p.SkipAnswer(); err != nil {
				return found, err
			}
			continue
		}
		before := *p
		r, err := p.Answer()
		if err != nil { // a record that is malformed takes itself away alone
			*p = before
			if err := p.SkipAnswer(); err != nil {
				return found, err
			}
			continue
		}
		name := fold(h.Name)
		if to, is := r.Body.(*dnsmessage.CNAMEResource); is {
			if _, has := found.aliases[name]; !has {
				found.aliases[name] = alias{fold(to.CNAME), h.TTL}
			}
			continue
		}
		found.others[name] = append(found.others[name], r)
	}
}

// choose takes the records of the name, or of the one at the end of its aliases.
func (r *response) choose(from records, name string, kind dnsmessage.Type) {
	asked, ttl := name, uint32(pinmessage.Longest/time.Second)
	shorten := func(t uint32) {
		if t > 1<<31-1 { // RFC 2181 section 8
			t = 0
		}
		ttl = min(ttl, t)
	}
	for range mostAliases {
		to, is := from.aliases[name]
		if !is {
			break
		}
		shorten(to.ttl)
		name = to.of
	}
	if _, is := from.aliases[name]; is { // a loop
		r.code = dnsmessage.RCodeServerFailure
		return
	}
	for _, record := range from.others[name] {
		body := usable(record, asked, name)
		if body == nil || len(r.bodies) == mostOf(kind) || isAddress(kind) && slices.ContainsFunc(r.bodies, func(b dnsmessage.ResourceBody) bool { return addressOf(b) == addressOf(body) }) {
			continue
		}
		shorten(record.Header.TTL)
		r.bodies = append(r.bodies, body)
	}
	if len(r.bodies) > 0 {
		r.life = max(r.life, time.Duration(ttl)*time.Second)
	}
}

func isAddress(kind dnsmessage.Type) bool {
	return kind == dnsmessage.TypeA || kind == dnsmessage.TypeAAAA
}

func mostOf(kind dnsmessage.Type) int {
	if isAddress(kind) {
		return pinmessage.MostAddresses
	}
	return mostRecords
}

// addressOf is the address of a record of the type A or AAAA.
func addressOf(body dnsmessage.ResourceBody) netip.Addr {
	switch b := body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(b.A)
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(b.AAAA)
	}
	return netip.Addr{}
}

// usable is what the guest gets of a record of the name that the asked one stands for. Nil: nothing.
func usable(record dnsmessage.Resource, asked, name string) dnsmessage.ResourceBody {
	switch b := record.Body.(type) {
	case *dnsmessage.AResource:
		if record.Header.Length == 4 {
			return b
		}
	case *dnsmessage.AAAAResource:
		if record.Header.Length == 16 {
			return b
		}
	case *dnsmessage.HTTPSResource:
		if service, is := service(b.SVCBResource, asked, name); is {
			return &dnsmessage.HTTPSResource{SVCBResource: service}
		}
	case *dnsmessage.SVCBResource:
		if service, is := service(*b, asked, name); is {
			return &service
		}
	case *dnsmessage.MXResource, *dnsmessage.SRVResource, *dnsmessage.TXTResource:
		return b
	}
	return nil
}

// passed are the parameters of a service that the guest gets. Hints are addresses that are not pinned: the guest asks
// for A and AAAA in any case (RFC 9460 section 7.3). With a key of ech nobody beside the guest would see which name it
// connects to.
var passed = []dnsmessage.SVCParamKey{dnsmessage.SVCParamMandatory, dnsmessage.SVCParamALPN, dnsmessage.SVCParamNoDefaultALPN, dnsmessage.SVCParamPort}

// service is the record with the parameters that are passed. It is none if the record stands for another name, which
// the guest could not resolve, or if a client must understand what is left out (RFC 9460 section 8).
func service(r dnsmessage.SVCBResource, asked, name string) (of dnsmessage.SVCBResource, is bool) {
	if target := fold(r.Target); r.Priority == 0 || target != "" && target != asked && target != name {
		return of, false
	}
	of = dnsmessage.SVCBResource{Priority: r.Priority, Target: dnsmessage.MustNewName(".")}
	for i, param := range r.Params {
		if i > 0 && param.Key <= r.Params[i-1].Key {
			return of, false // malformed (section 2.2)
		}
		if param.Key == dnsmessage.SVCParamMandatory && !allPassed(param.Value) {
			return of, false
		}
		if slices.Contains(passed, param.Key) {
			of.Params = append(of.Params, dnsmessage.SVCParam{Key: param.Key, Value: slices.Clone(param.Value)})
		}
	}
	return of, true
}

// allPassed reports whether the keys of a parameter mandatory are passed.
func allPassed(keys []byte) bool {
	for len(keys) >= 2 {
		if !slices.Contains(passed, dnsmessage.SVCParamKey(keys[0])<<8|dnsmessage.SVCParamKey(keys[1])) {
			return false
		}
		keys = keys[2:]
	}
	return len(keys) == 0
}
