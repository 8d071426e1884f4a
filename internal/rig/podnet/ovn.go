package podnet

import "fmt"

// nbctl runs ovn-nbctl(8) with lines of words, each a command of one transaction.
func (v *vswitch) nbctl(commands ...string) {
	v.t.Helper()
	v.run("", "ovn-nbctl", transaction(commands)...)
}

// logicalSwitch creates a logical switch, and a logical router's port on it with the addresses.
func (v *vswitch) logicalSwitch(name, router, mac, addresses string) {
	v.t.Helper()
	up, down := router+"-"+name, name+"-"+router
	v.nbctl("ls-add "+name, "lrp-add "+router+" "+up+" "+mac+" "+addresses,
		"lsp-add "+name+" "+down, "lsp-set-type "+down+" router", "lsp-set-addresses "+down+" router", "lsp-set-options "+down+" router-port="+up)
}

// logicalPort creates a port of a logical switch; secure switches port security on for its addresses.
func (v *vswitch) logicalPort(name, on, addresses string, secure bool) {
	v.t.Helper()
	commands := []string{"lsp-add " + on + " " + name, "lsp-set-addresses " + name + " '" + addresses + "'"}
	if secure {
		commands = append(commands, "lsp-set-port-security "+name+" '"+addresses+"'")
	}
	v.nbctl(commands...)
}

// nodePort creates the node's link on a logical switch, with the addresses.
func (v *vswitch) nodePort(link, port, mac string, mtu int, addresses ...string) {
	v.t.Helper()
	v.vsctl("add-port br-int "+link, fmt.Sprintf("set interface %s type=internal mtu_request=%d external_ids:iface-id=%s", link, mtu, port))
	v.node.IP("link set " + link + " address " + mac)
	v.node.IP("link set " + link + " up")
	addAddresses(v.node, link, addresses...)
}
