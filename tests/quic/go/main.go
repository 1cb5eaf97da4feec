// Servers and clients of quic-go for tests/cases/quic-stacks.sh; quic_quinn.rs and aioquic_peer.py do the same with theirs.
//
//	peer server ADDRESS NUMBER [lb]      answers on every stream which server it is; with lb, this is also in its connection ids
//	peer client ADDRESS COUNT FIRST      COUNT connections from 10.1.0.0 + FIRST on; each asks, and has another port before it
//	                                     asks again, twice; prints what came of it as JSON
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
)

const protocol = "mr"

// Connections that are opened, or ask, at one time.
const atOnce = 50

var config = &quic.Config{MaxIdleTimeout: 120 * time.Second, HandshakeIdleTimeout: 30 * time.Second}

func main() {
	number, err := strconv.Atoi(os.Args[3])
	if err == nil && os.Args[1] == "server" {
		err = serve(os.Args[2], number)
	} else if err == nil {
		var first int
		if first, err = strconv.Atoi(os.Args[4]); err == nil {
			err = connect(os.Args[2], number, first)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(address string, number int) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	own := tls.Certificate{Certificate: [][]byte{certificate}, PrivateKey: key}
	settings := &tls.Config{Certificates: []tls.Certificate{own}, NextProtos: []string{protocol}}
	own4, err := net.ResolveUDPAddr("udp4", address)
	if err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp4", own4)
	if err != nil {
		return err
	}
	transport := &quic.Transport{Conn: socket}
	if len(os.Args) > 4 {
		transport.ConnectionIDGenerator = routable(number)
	}
	listener, err := transport.Listen(settings, config)
	if err != nil {
		return err
	}
	for {
		connection, err := listener.Accept(context.Background())
		if err != nil {
			return err
		}
		go answer(connection, number)
	}
}

// Ids of QUIC-LB, configuration 0: one byte of server id, eight of nonce, not encrypted.
type routable byte

func (number routable) GenerateConnectionID() (quic.ConnectionID, error) {
	id := make([]byte, number.ConnectionIDLen())
	_, err := rand.Read(id)
	id[0], id[1] = byte(len(id)-1), byte(number)
	return quic.ConnectionIDFromBytes(id), err
}

func (number routable) ConnectionIDLen() int { return 10 }

func answer(connection *quic.Conn, number int) {
	for {
		stream, err := connection.AcceptStream(context.Background())
		if err != nil {
			return
		}
		_, _ = io.ReadAll(stream)
		fmt.Fprintf(stream, "%d", number)
		stream.Close()
	}
}

// A socket whose port changes without the connection on it being told, as behind a NAT.
type socket struct {
	lock    sync.Mutex
	current *net.UDPConn
}

func (s *socket) now() *net.UDPConn {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.current
}

func (s *socket) move(own net.IP) error {
	next, err := net.ListenUDP("udp4", &net.UDPAddr{IP: own})
	if err != nil {
		return err
	}
	s.lock.Lock()
	old := s.current
	s.current = next
	s.lock.Unlock()
	if old != nil {
		old.Close()
	}
	return nil
}

func (s *socket) ReadFrom(bytes []byte) (int, net.Addr, error) {
	for {
		current := s.now()
		count, from, err := current.ReadFrom(bytes)
		if err == nil || current == s.now() {
			return count, from, err
		}
	}
}

func (s *socket) WriteTo(bytes []byte, to net.Addr) (int, error) { return s.now().WriteTo(bytes, to) }
func (s *socket) Close() error                                   { return s.now().Close() }
func (s *socket) LocalAddr() net.Addr                            { return s.now().LocalAddr() }
func (s *socket) SetDeadline(at time.Time) error                 { return s.now().SetDeadline(at) }
func (s *socket) SetReadDeadline(at time.Time) error             { return s.now().SetReadDeadline(at) }
func (s *socket) SetWriteDeadline(at time.Time) error            { return s.now().SetWriteDeadline(at) }

type client struct {
	own        net.IP
	socket     *socket
	connection *quic.Conn
	server     string
}

func (c *client) open(to *net.UDPAddr) error {
	c.socket = &socket{}
	if err := c.socket.move(c.own); err != nil {
		return err
	}
	settings := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}
	transport := &quic.Transport{Conn: c.socket}
	limited, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	connection, err := transport.Dial(limited, to, settings, config)
	c.connection = connection
	if err != nil {
		return err
	}
	if c.server, err = c.ask(); err != nil {
		return err
	}
	// With its second question the client takes another id, which it has been told in secret.
	_, err = c.ask()
	return err
}

func (c *client) ask() (string, error) {
	limited, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	stream, err := c.connection.OpenStreamSync(limited)
	if err != nil {
		return "", err
	}
	_ = stream.SetDeadline(time.Now().Add(40 * time.Second))
	if _, err := stream.Write([]byte("who?")); err != nil {
		return "", err
	}
	stream.Close()
	bytes, err := io.ReadAll(stream)
	return string(bytes), err
}

func (c *client) moveAndAsk() error {
	if err := c.socket.move(c.own); err != nil {
		return err
	}
	server, err := c.ask()
	if err == nil && server != c.server {
		err = fmt.Errorf("server %s answers instead of %s", server, c.server)
	}
	return err
}

func connect(address string, count, first int) error {
	to, err := net.ResolveUDPAddr("udp4", address)
	if err != nil {
		return err
	}
	clients := make([]*client, count)
	for at := range clients {
		number := first + at
		clients[at] = &client{own: net.IPv4(10, 1, byte(number>>8), byte(number))}
	}
	failed := map[string]int{}
	var lock sync.Mutex
	each := func(what string, do func(*client) error) {
		var wait sync.WaitGroup
		slots := make(chan struct{}, atOnce)
		for _, one := range clients {
			if what != "open" && one.server == "" {
				continue
			}
			wait.Add(1)
			slots <- struct{}{}
			go func() {
				defer wait.Done()
				if err := do(one); err != nil {
					lock.Lock()
					failed[what+": "+err.Error()]++
					lock.Unlock()
				}
				<-slots
			}()
		}
		wait.Wait()
	}
	each("open", func(c *client) error { return c.open(to) })
	each("first move", (*client).moveAndAsk)
	each("second move", (*client).moveAndAsk)
	servers := map[string]int{}
	for _, one := range clients {
		servers[one.server]++
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"connections": count, "failed": failed, "servers": servers})
}
