
ª<domain type="">
	<name>default_vm1</name>
	<memory unit="b">134217728</memory>
	<os>
		<type machine="s390-ccw-virtio"></type>
	</os>
	<sysinfo type="">
		<system></system>
		<bios></bios>
		<baseBoard></baseBoard>
		<chassis></chassis>
	</sysinfo>
	<devices>
		<interface type="ethernet">
			<source></source>
			<target dev="eth0" managed="no"></target>
			<model type="virtio"></model>
			<mac address="02:00:00:00:00:16"></mac>
			<mtu size="1500"></mtu>
			<alias name="ua-default"></alias>
			<driver name="vhost" queues="2"></driver>
		</interface>
		<interface type="ethernet">
			<source></source>
			<target dev="pod16477688c0e" managed="no"></target>
			<model type="virtio"></model>
			<mac address="02:00:00:00:00:17"></mac>
			<mtu size="1500"></mtu>
			<alias name="ua-blue"></alias>
			<driver name="vhost" queues="2"></driver>
			<acpi index="7"></acpi>
		</interface>
		<interface type="ethernet">
			<source></source>
			<target dev="tapb1f51a511f1" managed="no"></target>
			<model type="virtio"></model>
			<mac address="02:00:00:00:00:18"></mac>
			<mtu size="1500"></mtu>
			<alias name="ua-red"></alias>
			<driver name="vhost" queues="2"></driver>
		</interface>
		<channel type="unix">
			<target name="org.qemu.guest_agent.0" type="virtio"></target>
		</channel>
		<controller type="usb" index="0" model="none"></controller>
		<controller type="scsi" index="0" model="virtio-scsi"></controller>
		<controller type="virtio-serial" index="0" model="virtio"></controller>
		<video>
			<model type="virtio" heads="1"></model>
		</video>
		<graphics type="vnc">
			<listen type="socket" socket="/var/run/kubevirt-private/0d6f7c0c-87e0-4f0b-bb64-0b4ae9b3a1c0/virt-vnc"></listen>
		</graphics>
		<memballoon model="virtio" freePageReporting="off"></memballoon>
		<disk device="disk" type="block" model="virtio">
			<source dev="/dev/disk0" name="disk0"></source>
			<target bus="virtio" dev="vda"></target>
			<driver error_policy="stop" name="qemu" type="raw" discard="unmap"></driver>
			<alias name="ua-disk0"></alias>
		</disk>
		<input type="keyboard" bus="virtio"></input>
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
	<cpu mode="host-model">
		<topology sockets="1" cores="2" threads="1"></topology>
	</cpu>
	<vcpu placement="static">2</vcpu>
</domain>Ö{"kind":"VirtualMachineInstance","apiVersion":"kubevirt.io/v1","metadata":{"name":"vm1","namespace":"default","uid":"0d6f7c0c-87e0-4f0b-bb64-0b4ae9b3a1c0","creationTimestamp":null},"spec":{"domain":{"resources":{"requests":{"memory":"128Mi"}},"cpu":{"cores":2,"sockets":1,"threads":1},"machine":{"type":"s390-ccw-virtio"},"devices":{"disks":[{"name":"disk0","disk":{"bus":"virtio"}}],"interfaces":[{"name":"default","binding":{"name":"guestwire"}},{"name":"blue","binding":{"name":"guestwire"},"acpiIndex":7},{"name":"red","bridge":{}}],"networkInterfaceMultiqueue":true}},"volumes":[{"name":"disk0","persistentVolumeClaim":{"claimName":"claim0"}}],"networks":[{"name":"default","pod":{}},{"name":"blue","multus":{"networkName":"blue-net"}},{"name":"red","multus":{"networkName":"red-net"}}],"architecture":"s390x"},"status":{"interfaces":[{"name":"default","podInterfaceName":"eth0"}],"guestOSInfo":{},"activePods":{"6b0e4d5e-5c2f-4f0e-9a43-0c1f0c7f2b11":"node1"},"runtimeUser":0}}