
libvirt <domain type="kvm">
  <name>default_vm1</name>
  <metadata><kubevirt xmlns="http://kubevirt.io"><uid></uid></kubevirt></metadata>
  <memory unit="b">134217728</memory>
  <vcpu placement="static">2</vcpu>
  <sysinfo type="smbios">
    <bios></bios>
    <system></system>
    <baseBoard></baseBoard>
    <chassis></chassis>
  </sysinfo>
  <os>
    <type arch="s390x" machine="s390-ccw-virtio">hvm</type>
  </os>
  <features></features>
  <cpu mode="host-model">
    <topology sockets="1" cores="2" threads="1"></topology>
  </cpu>
  <devices>
    <disk type="block" device="disk" model="virtio">
      <driver name="qemu" type="raw" error_policy="stop" discard="unmap"></driver>
      <source dev="/dev/disk0"></source>
      <target dev="vda" bus="virtio"></target>
      <alias name="ua-disk0"></alias>
    </disk>
    <controller type="usb" index="0" model="none"></controller>
    <controller type="scsi" index="0" model="virtio-scsi"></controller>
    <controller type="virtio-serial" index="0" model="virtio"></controller>
    <interface type="ethernet">
      <mac address="02:00:00:00:00:10"></mac>
      <target dev="eth0" managed="no"></target>
      <model type="virtio"></model>
      <driver name="vhost" queues="2"></driver>
      <mtu size="1500"></mtu>
      <alias name="ua-default"></alias>
    </interface>
    <interface type="ethernet">
      <mac address="02:00:00:00:00:11"></mac>
      <target dev="pod16477688c0e" managed="no"></target>
      <model type="virtio"></model>
      <driver name="vhost" queues="2"></driver>
      <mtu size="1500"></mtu>
      <acpi index="7"></acpi>
      <alias name="ua-blue"></alias>
    </interface>
    <interface type="ethernet">
      <mac address="02:00:00:00:00:12"></mac>
      <target dev="tapb1f51a511f1" managed="no"></target>
      <model type="virtio"></model>
      <driver name="vhost" queues="2"></driver>
      <mtu size="1500"></mtu>
      <alias name="ua-red"></alias>
    </interface>
    <serial type="unix">
      <source mode="bind" path="/var/run/kubevirt-private/0d6f7c0c-87e0-4f0b-bb64-0b4ae9b3a1c0/virt-serial0"></source>
      <target port="0"></target>
    </serial>
    <console type="pty">
      <target type="serial" port="0"></target>
    </console>
    <channel type="unix">
      <target type="virtio" name="org.qemu.guest_agent.0"></target>
    </channel>
    <input type="keyboard" bus="virtio"></input>
    <graphics type="vnc">
      <listen type="socket" socket="/var/run/kubevirt-private/0d6f7c0c-87e0-4f0b-bb64-0b4ae9b3a1c0/virt-vnc"></listen>
    </graphics>
    <video>
      <model type="virtio" heads="1"></model>
    </video>
    <memballoon model="virtio" freePageReporting="off"></memballoon>
  </devices>
</domain>˜{"kind":"VirtualMachineInstance","apiVersion":"kubevirt.io/v1","metadata":{"name":"vm1","namespace":"default","uid":"0d6f7c0c-87e0-4f0b-bb64-0b4ae9b3a1c0"},"spec":{"domain":{"resources":{"requests":{"memory":"128Mi"}},"cpu":{"cores":2,"sockets":1,"threads":1},"devices":{"disks":[{"name":"disk0","disk":{"bus":"virtio"}}],"interfaces":[{"name":"default","binding":{"name":"guestwire"}},{"name":"blue","binding":{"name":"guestwire"},"acpiIndex":7},{"name":"red","bridge":{}}],"networkInterfaceMultiqueue":true}},"volumes":[{"name":"disk0","persistentVolumeClaim":{"claimName":"claim0"}}],"networks":[{"name":"default","pod":{}},{"name":"blue","multus":{"networkName":"blue-net"}},{"name":"red","multus":{"networkName":"red-net"}}],"architecture":"s390x"},"status":{"interfaces":[{"name":"default","podInterfaceName":"eth0"}],"guestOSInfo":{},"activePods":{"6b0e4d5e-5c2f-4f0e-9a43-0c1f0c7f2b11":"node1"},"runtimeUser":0}}"
Boot