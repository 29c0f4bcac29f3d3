// From logits to tokens, log probabilities and alternatives: package sample's steps, in its order, one
// block a row. What differs is precision: weights eˣ are float32 here, with sums in float64, so that a
// choice within 10⁻⁶ of falling the other way may fall the other way.

#pragma once
#include "device.cuh"

// Choice is a row of the batch: gpu.Row, as sampling.go lays it out. What it points to is so many bytes after
// the beginning of all that the batch says.
struct Choice {
	int kind; // 0: sample, 1: score, 2: nothing
	int logits; // its row of logits
	int top, target;
	float temperature, top_p, min_p;
	int top_k;
	float repetition, presence, frequency;
	uint32_t seed_low, seed_high;
	int choice, draw;
	int history, history_length, history_prompt;
	int bias, bias_length, mask; // a mask of −1 is none
	int alternatives; // where they go
};

struct Alternative {
	int id;
	float logprob;
};

struct Bias {
	int id;
	float value;
};

// Chosen is a row's answer. wrong is −1, or the first token whose logit is not a finite number.
struct Chosen {
	int token;
	float logprob;
	int rank, wrong;
};

// MAX_SAMPLE_WARPS bounds the threads of a block.
#define MAX_SAMPLE_WARPS 32
#define LARGEST 3.402823466e38f

// Best is a token and its logit or score.
struct Best {
	double value;
	int id;
};

// better says that a comes before b: the higher value, the lower id among equals. An id of −1 is none.
FUNCTION bool better(double value, int id, double other_value, int other) {
	return id >= 0 && (other < 0 || value > other_value || (value == other_value && id < other));
}

FUNCTION Best block_best(Best v, Best *place) {
#pragma unroll
	for (int distance = WARP / 2; distance > 0; distance /= 2) {
		double value = __shfl_xor_sync(ALL_LANES, v.value, distance);
		int id = __shfl_xor_sync(ALL_LANES, v.id, distance);
		if (better(value, id, v.value, v.id))
			v.value = value, v.id = id;
	}
	if (threadIdx.x % WARP == 0)
		place[threadIdx.x / WARP] = v;
	__syncthreads();
	v = place[0];
	for (int i = 1; i < (int)blockDim.x / WARP; i++)
		if (better(place[i].value, place[i].id, v.value, v.id))
			v = place[i];
	__syncthreads();
	return v;
}

// likeliest is the first of the highest logits.
FUNCTION Best likeliest(const float *l, int vocab, Best *place) {
	Best b = {0, -1};
	for (int id = threadIdx.x; id < vocab; id += blockDim.x)
		if (better(l[id], id, b.value, b.id))
			b.value = l[id], b.id = id;
	return block_best(b, place);
}

// philox is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC11); the counter is (pair, draw, choice, 0).
FUNCTION void philox(uint32_t k0, uint32_t k1, uint32_t c0, uint32_t c1, uint32_t c2, uint64_t random[2]) {
	uint32_t c3 = 0;
#pragma unroll
	for (int i = 0; i < 10; i++) {
		uint64_t p = (uint64_t)c0 * 0xD2511F53u, q = (uint64_t)c2 * 0xCD9E8D57u;
		c0 = (uint32_t)(q >> 32) ^ c1 ^ k0;
		c1 = (uint32_t)q;
		c2 = (uint32_t)(p >> 32) ^ c3 ^ k1;
		c3 = (uint32_t)p;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	random[0] = (uint64_t)c1 << 32 | c0;
	random[1] = (uint64_t)c3 << 32 | c2;
}

// noise is a number of the standard Gumbel distribution.
FUNCTION double noise(uint64_t r) {
	double u = ((double)(int64_t)(r >> 12) + 0.5) * 2.220446049250313e-16; // 2⁻⁵²
	return -log(-log(u));
}

// Filter keeps the candidates that MinP leaves, from the heaviest on, lowest ids first among equals, down
// to that of key and id.
struct Filter {
	const float *l;
	double top, inverse, least;
	uint32_t key;
	int id;
};

// kept says whether a token is still a candidate.
FUNCTION bool kept(const Filter &f, int id) {
	float v = f.l[id];
	if (!(v >= -LARGEST) || !((v - f.top) * f.inverse >= f.least))
		return false;
	uint32_t k = order_key(v);
	return k > f.key || (k == f.key && id <= f.id);
}

FUNCTION double weight(const Filter &f, int id, bool weighted) {
	return weighted ? (double)expf((float)((f.l[id] - f.top) * f.inverse)) : 1;
}

// keep narrows the filter to the fewest candidates that weigh target together, but at least one. Unless
// weighted, each weighs 1.
FUNCTION void keep(Filter &f, int vocab, double target, bool weighted, uint32_t highest, double *sums, int *counts) {
	// The highest key at and above which candidates weigh target, found bit by bit; 0 if all don't.
	uint32_t key = 0;
	for (int bit = 31; bit >= 0; bit--) {
		uint32_t tried = key | 1u << bit;
		double sum = 0;
		if (tried <= highest)
			for (int id = threadIdx.x; id < vocab; id += blockDim.x)
				if (order_key(f.l[id]) >= tried && kept(f, id))
					sum += weight(f, id, weighted);
		sum = block_sum(sum, sums);
		if (tried <= highest && sum >= target)
			key = tried;
	}
	if (target <= 0)
		key = highest;
	double above = 0;
	int equal = 0, one = 0;
	for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
		if (!kept(f, id))
			continue;
		uint32_t k = order_key(f.l[id]);
		if (k > key)
			above += weight(f, id, weighted);
		if (k == key)
			equal++, one = id + 1;
	}
	above = block_sum(above, sums);
	equal = block_sum(equal, counts);
	if (equal == 0) { // no target that can be reached: all stay
		f.key = key > f.key ? key : f.key;
		return;
	}
	// Of those with the key itself, the lowest ids, as many as it takes.
	__shared__ double each;
	if (one > 0)
		each = weight(f, one - 1, weighted); // the same from whichever thread
	__syncthreads();
	int n = 1;
	for (double sum = above + each; sum < target && n < equal; n++)
		sum += each;
	int before = 0; // the highest id below which there are fewer than n
	if (n < equal) {
		for (int bit = 30; bit >= 0; bit--) {
			int tried = before | 1 << bit;
			int count = 0;
			if (tried < vocab)
				for (int id = threadIdx.x; id < tried; id += blockDim.x)
					if (order_key(f.l[id]) == key && kept(f, id))
						count++;
			count = block_sum(count, counts);
			if (tried < vocab && count < n)
				before = tried;
		}
		f.id = before;
	} else if (key != f.key) {
		f.id = vocab;
	}
	f.key = key;
	__syncthreads(); // each is written again by the next call
}

FUNCTION float clamped(float v) {
	if (v > LARGEST)
		return LARGEST;
	return v != v ? -infinity() : v; // 0 × a banned token's −∞
}

FUNCTION bool allowed(const uint32_t *mask, int id) { return mask[id / 32] >> (id % 32) & 1; }

// any_left says whether a token is left.
FUNCTION bool any_left(const float *l, int vocab, int *counts) {
	int left = 0;
	for (int id = threadIdx.x; id < vocab; id += blockDim.x)
		left |= l[id] >= -LARGEST;
	return block_sum(left, counts) > 0;
}

// process applies mask, biases and penalties to a copy of the logits in l, where a token at least is left.
// seen is 0 for every token, before and after.
FUNCTION void process(const Choice &c, const float *logits, float *l, int vocab, const int *history, const Bias *biases, const uint32_t *mask, bool penalised, uint32_t *seen, int *counts) {
	int some = 0;
	for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
		bool in = mask == 0 || allowed(mask, id);
		l[id] = in ? logits[id] : -infinity();
		some |= in;
	}
	if (block_sum(some, counts) == 0) // a mask without a token
		for (int id = threadIdx.x; id < vocab; id += blockDim.x)
			l[id] = logits[id];
	__syncthreads();
	if (c.bias_length > 0) {
		// They are sorted by id; should one be there twice, its first entry's thread does all.
		for (int i = threadIdx.x; i < c.bias_length; i += blockDim.x) {
			int id = biases[i].id;
			if (i > 0 && biases[i - 1].id == id)
				continue;
			for (int j = i; j < c.bias_length && biases[j].id == id; j++)
				l[id] = clamped(l[id] + biases[j].value);
		}
		__syncthreads();
		if (!any_left(l, vocab, counts)) { // the bans of biases are lifted
			for (int i = threadIdx.x; i < c.bias_length; i += blockDim.x)
				if (biases[i].value == -infinity() && (mask == 0 || allowed(mask, biases[i].id)))
					l[biases[i].id] = logits[biases[i].id];
			__syncthreads();
			if (mask != 0 && !any_left(l, vocab, counts)) {
				for (int id = threadIdx.x; id < vocab; id += blockDim.x)
					l[id] = logits[id];
				__syncthreads();
			}
		}
	}
	if (!penalised)
		return;
	for (int i = threadIdx.x; i < c.history_length; i += blockDim.x) {
		atomicOr(&seen[history[i]], 1u);
		if (i >= c.history_prompt)
			atomicAdd(&seen[history[i]], 2u);
	}
	__syncthreads();
	for (int i = threadIdx.x; i < c.history_length; i += blockDim.x) {
		int id = history[i];
		uint32_t n = atomicExch(&seen[id], 0u);
		if (n == 0)
			continue; // another's
		float v = l[id];
		v = v > 0 ? v / c.repetition : v * c.repetition;
		if (n / 2 > 0) {
			v -= c.frequency * (float)(n / 2);
			v -= c.presence;
		}
		l[id] = clamped(v);
	}
	__syncthreads();
}

// draw is the token whose scaled logit and noise are highest together, among those that are kept.
FUNCTION int draw(const Filter &f, const Choice &c, int vocab, Best *place) {
	Best b = {0, -1};
	for (int pair = threadIdx.x; 2 * pair < vocab; pair += blockDim.x) {
		bool filled = false;
		uint64_t random[2];
		for (int i = 0; i < 2; i++) {
			int id = 2 * pair + i;
			if (id >= vocab || !kept(f, id))
				continue;
			if (!filled)
				philox(c.seed_low, c.seed_high, (uint32_t)pair, (uint32_t)c.draw, (uint32_t)c.choice, random);
			filled = true;
			double x = (f.l[id] - f.top) * f.inverse;
			// The noise is below −log(1−u), and that below what the complement's zeros say: see package sample.
			if (b.id >= 0 && x + (__clzll((int64_t)~random[i]) + 1) * 0.6931471805599453 < b.value)
				continue;
			double sum = x + noise(random[i]);
			if (better(sum, id, b.value, b.id))
				b.value = sum, b.id = id;
		}
	}
	return block_best(b, place).id;
}

// choose answers row x. work has a row of floats and one of zeros for each block.
KERNEL void THREADS(512) choose(const float *all_logits, int vocab, int stride, const Choice *choices, const char *said, float *work, uint32_t *all_seen, Chosen *chosen, Alternative *alternatives) {
	__shared__ Best place[MAX_SAMPLE_WARPS];
	__shared__ double sums[MAX_SAMPLE_WARPS];
	__shared__ int counts[MAX_SAMPLE_WARPS];
	Choice c = choices[blockIdx.x];
	if (c.kind == 2)
		return;
	const float *logits = all_logits + (int64_t)c.logits * stride;
	float *l = work + (int64_t)blockIdx.x * vocab;
	uint32_t *seen = all_seen + (int64_t)blockIdx.x * vocab;

	Best wrong = {0, -1};
	for (int id = threadIdx.x; id < vocab; id += blockDim.x)
		if ((__float_as_int(logits[id]) & 0x7f800000) == 0x7f800000 && wrong.id < 0)
			wrong.id = id;
	wrong = block_best(wrong, place);
	if (wrong.id >= 0) {
		if (threadIdx.x == 0)
			chosen[blockIdx.x] = Chosen{-1, 0, 0, wrong.id};
		return;
	}
	Best raw = likeliest(logits, vocab, place);
	int token = c.target;
	if (c.kind == 0) {
		bool penalised = c.history_length > 0 && (c.repetition != 1 || c.presence != 0 || c.frequency != 0);
		const float *used = logits;
		Best best = raw;
		if (c.mask >= 0 || c.bias_length > 0 || penalised) {
			process(c, logits, l, vocab, (const int *)(said + c.history), (const Bias *)(said + c.bias), c.mask < 0 ? 0 : (const uint32_t *)(said + c.mask), penalised, seen, counts);
			used = l;
			best = likeliest(l, vocab, place);
		}
		token = best.id;
		if (c.temperature >= 1e-5f) {
			Filter f = {used, best.value, 1 / (double)c.temperature, -(double)infinity(), 0, vocab};
			if (c.min_p > 0)
				f.least = log((double)c.min_p);
			uint32_t highest = order_key((float)best.value);
			if (c.top_k > 0 && c.top_k < vocab)
				keep(f, vocab, c.top_k, false, highest, sums, counts);
			if (c.top_p < 1) {
				double sum = 0;
				for (int id = threadIdx.x; id < vocab; id += blockDim.x)
					if (kept(f, id))
						sum += weight(f, id, true);
				keep(f, vocab, block_sum(sum, sums) * (double)c.top_p, true, highest, sums, counts);
			}
			token = draw(f, c, vocab, place);
		}
	}
	if (c.top < 0) {
		if (threadIdx.x == 0)
			chosen[blockIdx.x] = Chosen{token, 0, 0, -1};
		return;
	}
	double sum = 0;
	float of = logits[token];
	int likelier = 0;
	for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
		sum += (double)expf((float)(logits[id] - raw.value));
		likelier += logits[id] > of;
	}
	double norm = raw.value + log(block_sum(sum, sums));
	likelier = block_sum(likelier, counts);
	if (threadIdx.x == 0)
		chosen[blockIdx.x] = Chosen{token, (float)(of - norm), 1 + likelier, -1};
	// The alternatives, one after the other: each is the best of those that come after the one before.
	Best last = raw;
	for (int i = 0; i < c.top; i++) {
		if (i > 0) {
			Best next = {0, -1};
			for (int id = threadIdx.x; id < vocab; id += blockDim.x)
				if (better(last.value, last.id, logits[id], id) && better(logits[id], id, next.value, next.id))
					next.value = logits[id], next.id = id;
			last = block_best(next, place);
		}
		if (threadIdx.x == 0)
			alternatives[c.alternatives + i] = Alternative{last.id, (float)(last.value - norm)};
	}
}
