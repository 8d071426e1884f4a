// Package firecracker tests guestwire in the place of the CNI plugin tc-redirect-tap: firecracker-go-sdk judges.
package firecracker
