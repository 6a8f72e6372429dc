package simulated

import (
	"encoding/binary"
	"io"
)

// order is what a provider tells its runners: on their standard input, that a
// sandbox exists or does not any more; at the start of each connection, to which
// sandbox that goes.
//
// Sandboxes have numbers from 1 on, which are never used again, and start in that
// order. So a runner that is asked for a sandbox it does not have knows by the
// number whether that is still to come or gone: the two ways overtake each other.
type order struct {
	kind    orderKind
	sandbox uint64
}

type orderKind byte

const (
	orderStart orderKind = 's'
	orderEnd   orderKind = 'e'
	orderOpen  orderKind = 'o'
)

// orderSize is an encoded order's length, in bytes.
const orderSize = 9

func (o order) write(w io.Writer) error {
	b := binary.BigEndian.AppendUint64([]byte{byte(o.kind)}, o.sandbox)
	_, err := w.Write(b)
	return err
}

func readOrder(r io.Reader) (order, error) {
	var b [orderSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return order{}, err
	}
	return order{kind: orderKind(b[0]), sandbox: binary.BigEndian.Uint64(b[1:])}, nil
}
