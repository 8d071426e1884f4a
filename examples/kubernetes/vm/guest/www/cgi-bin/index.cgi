#!/bin/busybox sh
# The only page: what the guest is called, who asks, and what DHCP has brought.
printf 'Content-Type: text/plain\r\n\r\n'
echo "guest $(hostname)"
client=${REMOTE_ADDR#\[::ffff:}
echo "client ${client%]}"
ip -o addr show scope global | awk '{ print $2, $4 }'
ip route
cat /etc/resolv.conf
