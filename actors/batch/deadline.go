package batch

// deadlines is a binary heap of the sequences that have a deadline, the nearest first. Sequences
// know their index, so that one that ends leaves at once.
type deadlines []*sequence

func (d *deadlines) push(q *sequence) {
	*d = append(*d, q)
	q.deadlineIndex = len(*d) - 1
	d.up(q.deadlineIndex)
}

func (d *deadlines) remove(q *sequence) {
	i := q.deadlineIndex
	if i < 0 {
		return
	}
	last := len(*d) - 1
	d.swap(i, last)
	(*d)[last] = nil
	*d = (*d)[:last]
	q.deadlineIndex = -1
	if i < last {
		d.down(i)
		d.up(i)
	}
}

func (d deadlines) less(i, j int) bool {
	a, b := d[i], d[j]
	if a.sub.Deadline != b.sub.Deadline {
		return a.sub.Deadline < b.sub.Deadline
	}
	return compare(a, b) < 0
}

func (d deadlines) swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].deadlineIndex, d[j].deadlineIndex = i, j
}

func (d deadlines) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !d.less(i, parent) {
			return
		}
		d.swap(i, parent)
		i = parent
	}
}

func (d deadlines) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(d) {
			return
		}
		if child+1 < len(d) && d.less(child+1, child) {
			child++
		}
		if !d.less(child, i) {
			return
		}
		d.swap(i, child)
		i = child
	}
}
