package guestfilter

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestVLANBlocks: the blocks hold the VLANs and no other.
func TestVLANBlocks(t *testing.T) {
	var all []uint16
	for id := range uint16(4095) {
		all = append(all, id)
	}
	some := func(n int) []uint16 {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		return slices.Clone(all[:n])
	}
	for _, c := range []struct {
		ids  []uint16
		most int
	}{
		{nil, 0}, {[]uint16{0}, 0}, {[]uint16{4094}, 1}, {[]uint16{1}, 1}, {[]uint16{5, 4}, 1}, {[]uint16{5, 6}, 2}, {[]uint16{3, 4, 5}, 2},
		{slices.Clone(all), 22}, {some(7), 7}, {some(2000), 2000}, {some(4000), 4000},
	} {
		blocks := vlanBlocks(c.ids)
		if len(blocks) > c.most {
			t.Errorf("%v: %d blocks, want at most %d", c.ids, len(blocks), c.most)
		}
		for id := range uint16(4096) {
			holds := 0
			for _, b := range blocks {
				if id&b.mask == b.id {
					holds++
				}
			}
			want := 0
			if id != 0 && slices.Contains(c.ids, id) {
				want = 1
			}
			if holds != want {
				t.Errorf("%v: VLAN %d is in %d blocks, want %d", c.ids, id, holds, want)
			}
		}
	}
}
