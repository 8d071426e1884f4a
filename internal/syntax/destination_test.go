package syntax

import (
	"net/netip"
	"slices"
	"testing"
)

// metadataServices are the addresses that hand out the data and credentials of a machine or a workload. A source is a
// page of the cloud, or a program that reads the address, looked up in November 2026. A date is that of the source.
var metadataServices = []struct{ address, of, source string }{
	{"169.254.169.254", "AWS EC2", "docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html"},
	{"169.254.169.254", "Azure", "learn.microsoft.com/azure/load-balancer/instance-metadata-service-load-balancer"},
	{"169.254.169.254", "Google", "docs.saltproject.io/en/master/ref/grains/all/salt.grains.metadata_gce.html"},
	{"169.254.169.254", "IBM", "cloud.ibm.com/apidocs/vpc-identity"},
	{"169.254.169.254", "Naver", "api.ncloud-docs.com/docs/en/compute-vmetadata.md, 2026-09-17"},
	{"169.254.169.254", "Huawei, OpenStack", "huaweicloud.com/guide, Metadata (OpenStack Metadata API)"},
	{"169.254.169.254", "UpCloud", "upcloud.com/docs/products/cloud-servers/features/metadata-service"},
	{"169.254.169.254", "DigitalOcean, Exoscale, Hetzner, Oracle, Vultr", "coreos/ignition internal/providers, 2026-07-23"},
	{"fd00:ec2::254", "AWS EC2", "docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html"},
	{"169.254.170.2", "AWS ECS", "docs.rs/aws-config/1.4.0/aws_config/ecs"},
	{"169.254.170.23", "AWS EKS Pod Identity", "docs.aws.amazon.com/eks/latest/userguide/pod-id-agent-setup.html"},
	{"fd00:ec2::23", "AWS EKS Pod Identity", "docs.aws.amazon.com/eks/latest/userguide/pod-id-agent-setup.html"},
	{"169.254.169.252", "Google GKE, ports 987 and 988", "gke-labs/kube-agents issue 747, 2026-08-19"},
	{"fd20:ce::254", "Google, IPv6", "public network policies for GKE, with 169.254.169.252"},
	{"168.63.129.16", "Azure's wire server", "canonical/cloud-init sources/helpers/azure.py, 2026-08-21"},
	{"192.0.0.192", "Oracle Classic", "swisskyrepo/PayloadsAllTheThings, Server Side Request Forgery"},
	{"fd00:c1::a9fe:a9fe", "Oracle, IPv6", "canonical/cloud-init sources/DataSourceOracle.py, 2026-08-21"},
	{"100.100.100.200", "Alibaba", "alibabacloud.com/help/en/ens/instance-metadata, 2024-11-06"},
	{"fd00:100::100:200", "Alibaba, IPv6", "canonical/cloud-init issue 6892, 2026-05-26"},
	{"169.254.0.23", "Tencent", "DataDog/datadog-agent pkg/util/cloudproviders/tencent"},
	{"169.254.42.42", "Scaleway", "scaleway.com/en/developers/api/instance/user-data"},
	{"fd00:42::42", "Scaleway, IPv6", "scaleway.com/en/developers/api/instance/user-data"},
	{"fd00:a9fe:a9fe::1", "Akamai (Linode), IPv6", "techdocs.akamai.com/cloud-computing/docs/metadata-service-api, 2026-10-07"},
	{"fe80::a9fe:a9fe", "OpenStack, Hetzner, Akamai, IPv6", "specs.openstack.org/openstack/neutron-specs/specs/ussuri/metadata-add-ipv6-support.html"},
	{"100.96.0.96", "Volcano Engine, BytePlus", "volcengine.com/docs/6396/113780, 2024-03-20"},
	{"100.80.80.80", "UCloud", "ucloud-global.com/docs/uhost/guide/metadata/metadata-server"},
}

// otherServices are of a cloud's or a cluster's link, and hand out no credentials: link-local has them, or private.
var otherServices = []struct{ address, of, source, list string }{
	{"169.254.169.253", "AWS, resolver", "docs.aws.amazon.com/vpc/latest/userguide/AmazonDNS-concepts.html", "link-local"},
	{"fd00:ec2::253", "AWS, resolver", "docs.aws.amazon.com/vpc/latest/userguide/AmazonDNS-concepts.html", "private"},
	{"169.254.169.123", "AWS, time", "docs.aws.amazon.com/AWSEC2/latest/UserGuide/set-time.html", "link-local"},
	{"169.254.169.250", "AWS and JD Cloud, activation", "docs.jdcloud.com/en/virtual-machines/instance-metadata, 2022-02-25", "link-local"},
	{"169.254.20.10", "Kubernetes' node-local resolver", "kubernetes.io/docs/tasks/administer-cluster/nodelocaldns", "link-local"},
	{"fe80::1", "a router", "RFC 4291", "link-local"},
}

// TestMetadata: the list has each of the known services, and nothing else.
func TestMetadata(t *testing.T) {
	list, seen := Destinations("metadata"), map[netip.Prefix]bool{}
	for _, s := range metadataServices {
		a := netip.MustParseAddr(s.address)
		n := netip.PrefixFrom(a, a.BitLen())
		if seen[n] = true; !slices.Contains(list, n) {
			t.Errorf("%s (%s, %s) is not in metadata", s.address, s.of, s.source)
		}
	}
	for _, n := range list {
		if !seen[n] {
			t.Errorf("%v is in metadata, and no source says why", n)
		}
	}
	for _, s := range otherServices {
		if !slices.ContainsFunc(Destinations(s.list), func(n netip.Prefix) bool { return n.Contains(netip.MustParseAddr(s.address)) }) {
			t.Errorf("%s (%s, %s) is not in %s", s.address, s.of, s.source, s.list)
		}
	}
}
