package kubernetes

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// authority signs the certificates of a cluster.
type authority struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := x509.Certificate{
		Subject:               pkix.Name{CommonName: "cluster"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := sign(&template, &template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return &authority{key, certificate}, err
}

// pem is the authority's own certificate.
func (a *authority) pem() []byte { return certificatePEM(a.certificate.Raw) }

// identity returns a key and its certificate in PEM. The API server takes the name for the user, and the groups for the
// user's. A server's certificate has the server's addresses and names.
func (a *authority) identity(user string, groups []string, addresses []net.IP, names ...string) (key, certificate []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		IPAddresses: addresses,
		DNSNames:    names,
	}, a.certificate, private.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	key, err = keyPEM(private)
	return key, certificatePEM(der), err
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 64))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	// Clocks of emulated machines are late or early.
	template.NotBefore = time.Now().Add(-24 * time.Hour)
	template.NotAfter = time.Now().Add(10 * 24 * time.Hour)
	return x509.CreateCertificate(rand.Reader, template, parent, public, key)
}

// serviceAccountKey returns the key that signs service accounts' tokens, and the public part that checks them, in PEM.
func serviceAccountKey() (key, public []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		return nil, nil, err
	}
	key, err = keyPEM(private)
	return key, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), err
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), err
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
