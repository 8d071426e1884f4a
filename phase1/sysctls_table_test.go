package phase1_test

import (
	"slices"
	"strings"
)

// decisions are of all sysctls that a namespace has, below /proc/sys/net, with * for the name of a link.
var decisions = []struct {
	why   string
	tried bool // by TestSysctls, with each value
	names string
}{
	{"only the first namespace of a machine can write it", false, `
		core: rmem_default rmem_max wmem_default wmem_max
		ipv4/conf/*: mc_forwarding
		ipv4: tcp_allowed_congestion_control tcp_available_congestion_control tcp_ehash_entries udp_hash_entries
		ipv6/conf/*: mc_forwarding
		mptcp: available_path_managers available_schedulers
		netfilter: nf_conntrack_buckets nf_conntrack_count nf_conntrack_expect_max nf_conntrack_max
	`},
	{"a write is an order, and no value stays", false, `
		ipv4/route: flush
		ipv6/route: flush
	`},
	{"the names of loggers, which a rule of guestwire does without: it names a group", false, `
		netfilter/nf_log: 0 1 10 2 3 4 5 6 7 8 9
	`},
	{"TestSysctlsRefused: no guest can work with some values, which Setup refuses", false, `
		ipv4/conf/*: arp_ignore
		ipv4: ipfrag_high_thresh ipfrag_low_thresh
		netfilter: nf_conntrack_frag6_high_thresh nf_conntrack_frag6_low_thresh nf_conntrack_generic_timeout
		nf_conntrack_gre_timeout nf_conntrack_gre_timeout_stream nf_conntrack_icmp_timeout nf_conntrack_icmpv6_timeout
		nf_conntrack_sctp_timeout_cookie_echoed nf_conntrack_sctp_timeout_cookie_wait
		nf_conntrack_sctp_timeout_established nf_conntrack_tcp_timeout_close_wait nf_conntrack_tcp_timeout_established
		nf_conntrack_tcp_timeout_fin_wait nf_conntrack_tcp_timeout_last_ack nf_conntrack_tcp_timeout_max_retrans
		nf_conntrack_tcp_timeout_syn_recv nf_conntrack_tcp_timeout_syn_sent nf_conntrack_tcp_timeout_unacknowledged
		nf_conntrack_udp_timeout nf_conntrack_udp_timeout_stream
	`},
	{"TestSysctlsRefused: it takes from the pod what it takes from the guest", false, `
		ipv6/conf/*: disable_ipv6
		ipv6: ip6frag_high_thresh ip6frag_low_thresh
	`},
	{"with a few octets Check cannot ask for a gateway, and says so", false, `
		core: optmem_max
	`},
	{"with 2 for all links and no secret, the kernel takes the mode for no link alone: a Teardown of bridge fails there, and says so", false, `
		ipv6/conf/*: addr_gen_mode
	`},
	{"how a link receives, answers and sends in IPv4", true, `
		ipv4/conf/*: accept_local accept_redirects accept_source_route arp_accept arp_announce arp_evict_nocarrier
		arp_filter arp_notify bc_forwarding bootp_relay disable_policy disable_xfrm drop_gratuitous_arp
		drop_unicast_in_l2_multicast force_igmp_version forwarding igmpv2_unsolicited_report_interval
		igmpv3_unsolicited_report_interval ignore_routes_with_linkdown log_martians medium_id promote_secondaries
		proxy_arp proxy_arp_pvlan route_localnet rp_filter secure_redirects send_redirects shared_media src_valid_mark tag
	`},
	{"how the pod looks for neighbours at the NIC: a new link has the defaults of the kernel, which no namespace but the first can write", false, `
		ipv4/neigh/*: anycast_delay app_solicit base_reachable_time base_reachable_time_ms delay_first_probe_time
		gc_stale_time interval_probe_time_ms locktime mcast_resolicit mcast_solicit proxy_delay proxy_qlen retrans_time
		retrans_time_ms ucast_solicit unres_qlen unres_qlen_bytes
		ipv6/neigh/*: anycast_delay app_solicit base_reachable_time base_reachable_time_ms delay_first_probe_time
		gc_stale_time interval_probe_time_ms locktime mcast_resolicit mcast_solicit proxy_delay proxy_qlen retrans_time
		retrans_time_ms ucast_solicit unres_qlen unres_qlen_bytes
	`},
	{"how a link receives, answers and sends in IPv6", true, `
		ipv6/conf/*: accept_dad accept_ra accept_ra_defrtr accept_ra_from_local accept_ra_min_hop_limit accept_ra_min_lft
		accept_ra_mtu accept_ra_pinfo accept_ra_rt_info_max_plen accept_ra_rt_info_min_plen accept_ra_rtr_pref
		accept_redirects accept_source_route accept_untracked_na autoconf dad_transmits disable_policy
		drop_unicast_in_l2_multicast drop_unsolicited_na enhanced_dad force_forwarding force_mld_version force_tllao
		forwarding hop_limit ignore_routes_with_linkdown ioam6_enabled ioam6_id ioam6_id_wide keep_addr_on_down
		max_addresses max_desync_factor mldv1_unsolicited_report_interval mldv2_unsolicited_report_interval mtu
		ndisc_evict_nocarrier ndisc_notify ndisc_tclass optimistic_dad proxy_ndp ra_defrtr_metric ra_honor_pio_life
		ra_honor_pio_pflag regen_max_retry regen_min_advance router_probe_interval router_solicitation_delay
		router_solicitation_interval router_solicitation_max_interval router_solicitations rpl_seg_enabled seg6_enabled
		seg6_require_hmac stable_secret suppress_frag_ndisc temp_prefered_lft temp_valid_lft use_oif_addrs_only
		use_optimistic use_tempaddr
	`},
	{"the sockets of the namespace: with some values the pod has no traffic, and the guest's packets meet no socket", false, `
		core: rps_default_mask somaxconn tstamp_allow_data txrehash xfrm_acq_expires xfrm_aevent_etime xfrm_aevent_rseqth
		xfrm_larval_drop
		ipv4: ip_autobind_reuse ip_default_ttl ip_dynaddr ip_early_demux ip_local_port_range ip_local_reserved_ports
		ip_no_pmtu_disc ip_nonlocal_bind ip_unprivileged_port_start ping_group_range raw_l3mdev_accept
		tcp_abort_on_overflow tcp_adv_win_scale tcp_app_win tcp_autocorking tcp_backlog_ack_defer tcp_base_mss
		tcp_challenge_ack_limit tcp_child_ehash_entries tcp_comp_sack_delay_ns tcp_comp_sack_nr tcp_comp_sack_slack_ns
		tcp_congestion_control tcp_dsack tcp_early_demux tcp_early_retrans tcp_ecn tcp_ecn_fallback tcp_ecn_option
		tcp_ecn_option_beacon tcp_fack tcp_fastopen tcp_fastopen_blackhole_timeout_sec tcp_fastopen_key tcp_fin_timeout
		tcp_frto tcp_fwmark_accept tcp_invalid_ratelimit tcp_keepalive_intvl tcp_keepalive_probes tcp_keepalive_time
		tcp_l3mdev_accept tcp_limit_output_bytes tcp_max_reordering tcp_max_syn_backlog tcp_max_tw_buckets tcp_migrate_req
		tcp_min_rtt_wlen tcp_min_snd_mss tcp_min_tso_segs tcp_moderate_rcvbuf tcp_mtu_probe_floor tcp_mtu_probing
		tcp_no_metrics_save tcp_no_ssthresh_metrics_save tcp_notsent_lowat tcp_orphan_retries tcp_pacing_ca_ratio
		tcp_pacing_ss_ratio tcp_pingpong_thresh tcp_plb_cong_thresh tcp_plb_enabled tcp_plb_idle_rehash_rounds
		tcp_plb_rehash_rounds tcp_plb_suspend_rto_sec tcp_probe_interval tcp_probe_threshold tcp_recovery tcp_reflect_tos
		tcp_reordering tcp_retrans_collapse tcp_retries1 tcp_retries2 tcp_rfc1337 tcp_rmem tcp_rto_max_ms tcp_rto_min_us
		tcp_sack tcp_shrink_window tcp_slow_start_after_idle tcp_stdurg tcp_syn_linear_timeouts tcp_syn_retries
		tcp_synack_retries tcp_syncookies tcp_thin_linear_timeouts tcp_timestamps tcp_tso_rtt_log tcp_tso_win_divisor
		tcp_tw_reuse tcp_tw_reuse_delay tcp_window_scaling tcp_wmem tcp_workaround_signed_windows udp_child_hash_entries
		udp_early_demux udp_l3mdev_accept udp_rmem_min udp_wmem_min
		ipv6: auto_flowlabels bindv6only flowlabel_consistency flowlabel_reflect flowlabel_state_ranges ip_nonlocal_bind
		seg6_flowlabel
		mptcp: add_addr_timeout allow_join_initial_addr_port blackhole_timeout checksum_enabled close_timeout enabled
		path_manager pm_type scheduler stale_loss_cnt syn_retrans_before_tcp_fallback
		unix: max_dgram_qlen
	`},
	{"what a bridge asks of iptables", true, `
		bridge: bridge-nf-call-arptables bridge-nf-call-ip6tables bridge-nf-call-iptables bridge-nf-filter-pppoe-tagged
		bridge-nf-filter-vlan-tagged bridge-nf-pass-vlan-input-dev
	`},
	{"connection tracking of what the namespace forwards", true, `
		netfilter: nf_conntrack_dccp_loose nf_conntrack_dccp_timeout_closereq nf_conntrack_dccp_timeout_closing
		nf_conntrack_dccp_timeout_open nf_conntrack_dccp_timeout_partopen nf_conntrack_dccp_timeout_request
		nf_conntrack_dccp_timeout_respond nf_conntrack_dccp_timeout_timewait nf_conntrack_helper
		nf_conntrack_sctp_timeout_heartbeat_acked nf_flowtable_tcp_timeout nf_flowtable_udp_timeout
		netfilter: nf_conntrack_acct nf_conntrack_checksum nf_conntrack_events nf_conntrack_frag6_timeout
		nf_conntrack_log_invalid nf_conntrack_sctp_timeout_closed nf_conntrack_sctp_timeout_heartbeat_sent
		nf_conntrack_sctp_timeout_shutdown_ack_sent nf_conntrack_sctp_timeout_shutdown_recd
		nf_conntrack_sctp_timeout_shutdown_sent nf_conntrack_tcp_be_liberal nf_conntrack_tcp_ignore_invalid_rst
		nf_conntrack_tcp_loose nf_conntrack_tcp_max_retrans nf_conntrack_tcp_timeout_close
		nf_conntrack_tcp_timeout_time_wait nf_conntrack_timestamp nf_hooks_lwtunnel
	`},
	{"routes, and what the namespace says of packets by ICMP and IGMP", true, `
		ipv4: fib_multipath_hash_fields fib_multipath_hash_policy fib_multipath_hash_seed fib_multipath_use_neigh
		fib_notify_on_flag_change fwmark_reflect icmp_echo_enable_probe icmp_echo_ignore_all icmp_echo_ignore_broadcasts
		icmp_errors_use_inbound_ifaddr icmp_ignore_bogus_error_responses icmp_msgs_burst icmp_msgs_per_sec icmp_ratelimit
		icmp_ratemask igmp_link_local_mcast_reports igmp_max_memberships igmp_max_msf igmp_qrv ip_forward
		ip_forward_update_priority ip_forward_use_pmtu ipfrag_max_dist ipfrag_time nexthop_compat_mode xfrm4_gc_thresh
		ipv4/route: min_adv_mss min_pmtu mtu_expires
		ipv6: anycast_src_echo_reply fib_multipath_hash_fields fib_multipath_hash_policy fib_notify_on_flag_change
		fwmark_reflect idgen_delay idgen_retries ioam6_id ioam6_id_wide ip6frag_time max_dst_opts_length
		max_dst_opts_number max_hbh_length max_hbh_opts_number xfrm6_gc_thresh
		ipv6/icmp: echo_ignore_all echo_ignore_anycast echo_ignore_multicast error_anycast_as_unicast ratelimit ratemask
		ipv6/route: gc_elasticity gc_interval gc_min_interval gc_min_interval_ms gc_thresh gc_timeout max_size min_adv_mss
		mtu_expires skip_notify_on_dev_down
	`},
}

// decided is what was decided about a sysctl.
type decided struct {
	why   string
	tried bool
}

// decision is that of a path; zero: there is none. A list of names begins with their directory.
func decision(path string) decided {
	for _, d := range decisions {
		dir := ""
		for _, word := range strings.Fields(d.names) {
			if of, is := strings.CutSuffix(word, ":"); is {
				dir = of
			} else if dir+"/"+word == path {
				return decided{d.why, d.tried}
			}
		}
	}
	if dir, _, _ := strings.Cut(path, "/"); !slices.Contains([]string{"bridge", "core", "ipv4", "ipv6", "mptcp", "netfilter", "unix"}, dir) {
		return decided{why: "sockets of a protocol whose module another program has loaded, such as SCTP"}
	}
	return decided{}
}
