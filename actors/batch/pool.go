package batch

// pool is the KV cache's blocks: who uses each, which are free, and what content the free and the
// used ones are known to hold.
type pool struct {
	blocks []block
	// The free blocks form a list. It is taken from its head; blocks without a name enter there, and
	// named ones at the tail, so that content lives as long as it can.
	head, tail int32
	free       int
	named      map[name]int32
}

// block is one KV cache block. Its number is its index in pool.blocks.
type block struct {
	name       name
	hasName    bool // named[name] is this block
	refs       int32
	prev, next int32 // in the free list, −1 at the ends; meaningful while refs is 0
}

func newPool(n int) pool {
	p := pool{blocks: make([]block, n), head: -1, tail: -1, named: make(map[name]int32)}
	for i := range p.blocks {
		p.pushTail(int32(i))
	}
	return p
}

// take returns a free block with one reference; its former content is forgotten. The caller has
// seen that free > 0.
func (p *pool) take() int32 {
	i := p.head
	p.unlink(i)
	p.forget(i)
	p.blocks[i].refs = 1
	return i
}

// share adds a reference to block i, which may be free.
func (p *pool) share(i int32) {
	if p.blocks[i].refs == 0 {
		p.unlink(i)
	}
	p.blocks[i].refs++
}

// release takes a reference away. Without any the block is free, its name and content kept.
func (p *pool) release(i int32) {
	b := &p.blocks[i]
	b.refs--
	switch {
	case b.refs > 0:
	case b.hasName:
		p.pushTail(i)
	default:
		p.pushHead(i)
	}
}

// releaseAll releases a sequence's blocks, the last first: a chain is of use only from its start,
// so its end should be reused before it.
func (p *pool) releaseAll(table []int32) {
	for j := len(table) - 1; j >= 0; j-- {
		p.release(table[j])
	}
}

// lookup finds a block of the given name.
func (p *pool) lookup(n *name) (int32, bool) {
	i, ok := p.named[*n]
	return i, ok
}

// store names block i, whose content is computed. When another block has the name already, that
// one keeps it: sequences that computed the same at the same time each have their own.
func (p *pool) store(i int32, n *name) {
	b := &p.blocks[i]
	if b.hasName {
		return
	}
	if _, taken := p.named[*n]; taken {
		return
	}
	b.name, b.hasName = *n, true
	p.named[*n] = i
}

// forget drops block i's name.
func (p *pool) forget(i int32) {
	if b := &p.blocks[i]; b.hasName {
		delete(p.named, b.name)
		b.hasName = false
	}
}

// forgetAll drops every name: the device's cache has lost its content.
func (p *pool) forgetAll() {
	for i := range p.blocks {
		p.blocks[i].hasName = false
	}
	clear(p.named)
}

func (p *pool) pushTail(i int32) {
	b := &p.blocks[i]
	b.prev, b.next = p.tail, -1
	if p.tail >= 0 {
		p.blocks[p.tail].next = i
	} else {
		p.head = i
	}
	p.tail = i
	p.free++
}

func (p *pool) pushHead(i int32) {
	b := &p.blocks[i]
	b.prev, b.next = -1, p.head
	if p.head >= 0 {
		p.blocks[p.head].prev = i
	} else {
		p.tail = i
	}
	p.head = i
	p.free++
}

func (p *pool) unlink(i int32) {
	b := &p.blocks[i]
	if b.prev >= 0 {
		p.blocks[b.prev].next = b.next
	} else {
		p.head = b.next
	}
	if b.next >= 0 {
		p.blocks[b.next].prev = b.prev
	} else {
		p.tail = b.prev
	}
	p.free--
}
