
Æ<domain type="kvm">
	<name>default_vm1</name>
	<memory unit="b">134217728</memory>
	<os>
		<type arch="x86_64" machine="q35">hvm</type>
		<smbios mode="sysinfo"></smbios>
	</os>
	<sysinfo type="smbios">
		<system></system>
		<bios></bios>
		<baseBoard></baseBoard>
		<chassis></chassis>
	</sysinfo>
	<devices>
		<interface type="ethernet">
			<source></source>
			<target dev="eth0" managed="no"></target>
			<model type="virtio-non-transitional"></model>
			<mac address="02:00:00:00:00:10"></mac>
			<mtu size="1500"></mtu>
			<alias name="ua-default"></alias>
			<driver name="vhost" queues="2"></driver>
			<rom enabled="no"></rom>
		</interface>
		<interface type="ethernet">
			<source></source>
			<target dev="pod16477688c0e" managed="no"></target>
			<model type="virtio-non-transitional"></model>
			<mac address="02:00:00:00:00:11"></mac>
			<mtu size="1500"></mtu>
			<alias name="ua-blue"></alias>
			<driver name="vhost" queues="2"></driver>
			<rom enabled="no"></rom>
			<acpi index="7"></acpi>
		</interface>
		<interface type="ethernet">
			<source></source>
			<target dev="tapb1f51a511f1" managed="no"></target>
			<model type="virtio-non-transitional"></model>
			<mac address="02:00:00:00:00:12"></mac>
			<mtu size="1500"></mtu>
			<alias name="ua-red"></alias>
			<driver name="vhost" queues="2"></driver>
			<rom enabled="no"></rom>
		</interface>
		<channel type="unix">
			<target name="org.qemu.guest_agent.0" type="virtio"></target>
		</channel>
		<controller type="usb" index="0" model="none"></controller>
		<controller type="scsi" index="0" model="virtio-non-transitional"></controller>
		<controller type="virtio-serial" index="0" model="virtio-non-transitional"></controller>
		<video>
			<model type="vga" heads="1" vram="16384"></model>
		</video>
		<graphics type="vnc">
			<listen type="socket" socket="/var/run/kubevirt-private/0d6f7c0c-87e0-4f0b-bb64-0b4ae9b3a1c0/virt-vnc"></listen>
		</graphics>
		<memballoon model="virtio-non-transitional" freePageReporting="off"></memballoon>
		<disk device="disk" type="block" model="virtio-non-transitional">
			<source dev="/dev/disk0" name="claim0"></source>
			<target bus="virtio" dev="vda"></target>
			<driver error_policy="stop" name="qemu" type="raw" discard="unmap"></driver>
			<alias name="ua-disk0"></alias>
		</disk>
		<serial type="unix">
			<target port="0"></target>
			<source mode="bind" path="/var/run/kubevirt-private/0d6f7c0c-87e0-4f0b-bb64-0b4ae9b3a1c0/virt-serial0"></source>
		</serial>
		<console type="pty">
			<target type="serial" port="0"></target>
		</console>
	</devices>
	<metadata>
		<kubevirt xmlns="http://kubevirt.io">
			<uid></uid>
		</kubevirt>
	</metadata>
	<features></features>
	<cpu mode="host-model">
		<feature name="mpx" policy="disable"></feature>
		<topology sockets="1" cores="2" threads="1"></topology>
	</cpu>
	<vcpu placement="static">2</vcpu>
</domain>Å{"kind":"VirtualMachineInstance","apiVersion":"kubevirt.io/v1","metadata":{"name":"vm1","namespace":"default","uid":"0d6f7c0c-87e0-4f0b-bb64-0b4ae9b3a1c0"},"spec":{"domain":{"resources":{"requests":{"memory":"128Mi"}},"cpu":{"cores":2,"sockets":1,"threads":1},"devices":{"disks":[{"name":"disk0","disk":{"bus":"virtio"}}],"interfaces":[{"name":"default","binding":{"name":"guestwire"}},{"name":"blue","binding":{"name":"guestwire"},"acpiIndex":7},{"name":"red","bridge":{}}],"networkInterfaceMultiqueue":true}},"volumes":[{"name":"disk0","persistentVolumeClaim":{"claimName":"claim0"}}],"networks":[{"name":"default","pod":{}},{"name":"blue","multus":{"networkName":"blue-net"}},{"name":"red","multus":{"networkName":"red-net"}}],"architecture":"amd64"},"status":{"nodeName":"node1","phase":"Running","interfaces":[{"mac":"02:73:53:00:b0:0c","name":"default","podInterfaceName":"eth0","infoSource":"domain"},{"mac":"02:73:53:00:b0:0d","name":"blue","podInterfaceName":"pod16477688c0e","infoSource":"domain, multus-status"},{"mac":"02:73:53:00:b0:0e","name":"red","podInterfaceName":"podb1f51a511f1","infoSource":"domain, multus-status"}],"guestOSInfo":{},"migrationState":{"targetNode":"node2","targetPod":"virt-launcher-vm1-2","sourceNode":"node1","migrationUid":"5e0c1a9e-0d0f-4a52-9f0f-aaaaaaaaaaaa"},"activePods":{"11111111-2222-4333-8444-555555555555":"node2","6b0e4d5e-5c2f-4f0e-9a43-0c1f0c7f2b11":"node1","7c1f5e6f-6d3a-4a1b-8b54-1d2a1e8a3c22":"node2"},"runtimeUser":0}}