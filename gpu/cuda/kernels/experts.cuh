// Mixtures of experts: what there is about them besides products. A row chooses its experts by a router's scores;
// choice i is choice i % used of row i / used. Choices are grouped by expert, so that a product reads an expert's
// weights once for all of its rows, and a row's results are summed in the order of its own choices. Rows that
// only fill a step up choose none: no weights are read for them.

#pragma once
#include "layer.cuh"
#include "linear.cuh"

// expert_key orders experts: a higher score is first, of equal ones the lower number. A NaN is lower than all
// numbers; the row's result will be NaN by its weights.
FUNCTION uint64_t expert_key(float score, int expert) {
	return (uint64_t)(score == score ? order_key(score) : 0) << 32 | (uint32_t)~expert;
}

// route chooses a row's used experts, the best first, and their weights: softmax over all count scores, or where
// normalise is 1, over those of the chosen. A choice of none is expert count, which there is not. Block x is a row, and a
// warp.
KERNEL void THREADS(32) route(const float *scores, int stride, const Row *rows, int *chosen, float *weights, int count, int used, int normalise) {
	scores += (int64_t)blockIdx.x * stride;
	chosen += (int64_t)blockIdx.x * used;
	weights += (int64_t)blockIdx.x * used;
	int lane = threadIdx.x;
	if (rows[blockIdx.x].position < 0) {
		for (int j = lane; j < used; j += WARP)
			chosen[j] = count;
		return;
	}
	uint64_t last = ~(uint64_t)0;
	float top = 0, sum = 0;
	for (int j = 0; j < used; j++) {
		uint64_t best = 0;
		for (int e = lane; e < count; e += WARP) {
			uint64_t key = expert_key(scores[e], e);
			if (key < last && key > best)
				best = key;
		}
		last = warp_most(best);
		int expert = (int)~(uint32_t)last;
		if (j == 0)
			top = scores[expert];
		float weight = expf(scores[expert] - top);
		sum += weight;
		if (lane == j % WARP) {
			chosen[j] = expert;
			weights[j] = weight;
		}
	}
	if (!normalise) {
		sum = 0;
		for (int e = lane; e < count; e += WARP)
			sum += expf(scores[e] - top);
		sum = warp_sum(sum);
	}
	for (int j = lane; j < used; j += WARP)
		weights[j] /= sum;
}

// A model has at most MOST_EXPERTS experts.
#define MOST_EXPERTS (1 << 14)
#define GROUP_THREADS 256

// group groups choices by expert, in the order of their rows: places[i] is where choice i is among the grouped,
// rows[place] the row that chose, and shares says which places are an expert's, at most columns a share. Shares are
// written to the last, which are empty where there are more than needed: choices / columns and one for each expert
// that is chosen suffice. Block x is an expert.
KERNEL void THREADS(GROUP_THREADS) group(const int *chosen, int choices, int used, int *places, int *rows, Share *shares, int length, int columns) {
	__shared__ uint32_t seen[MOST_EXPERTS / 32]; // a bit for each expert before this one that is chosen
	__shared__ int counts[GROUP_THREADS], sums[WARP];
	int expert = blockIdx.x, words = (expert + 31) / 32;
	for (int i = threadIdx.x; i < words; i += blockDim.x)
		seen[i] = 0;
	__syncthreads();
	int each = (choices + blockDim.x - 1) / blockDim.x, from = threadIdx.x * each, to = smaller(choices, from + each);
	int before = 0, n = 0, all = 0;
	for (int i = from; i < to; i++) {
		int e = chosen[i];
		all += e < (int)gridDim.x;
		if (e < expert) {
			before++;
			atomicOr(&seen[e / 32], 1u << e % 32);
		}
		n += e == expert;
	}
	counts[threadIdx.x] = n;
	__syncthreads();
	int distinct = 0;
	for (int i = threadIdx.x; i < words; i += blockDim.x)
		distinct += __popc(seen[i]);
	before = block_sum(before, sums);
	n = block_sum(n, sums);
	distinct = block_sum(distinct, sums);
	all = block_sum(all, sums);
	if (n == 0)
		return;
	int at = before;
	for (int i = 0; i < (int)threadIdx.x; i++)
		at += counts[i];
	for (int i = from; i < to; i++)
		if (chosen[i] == expert) {
			rows[at] = i / used;
			places[i] = at++;
		}
	// The first share is behind as many as the choices and the experts before can need.
	int first = before / columns + distinct, next = before + n == all ? length : (before + n) / columns + distinct + 1;
	for (int i = threadIdx.x; first + i < next; i += blockDim.x)
		shares[first + i] = Share{expert, smaller(before + n, before + i * columns), smaller(before + n, before + (i + 1) * columns)};
}

// mix writes what the experts of a row say, by their weights, and what a shared expert says, if there is one, times
// the logistic function of the row's gate, if there are gates. Where it is to be added to y, add is 1. Block x is a
// row.
KERNEL void mix(const float *said, int said_stride, const Row *rows, const int *places, const float *weights, int used, const float *shared, int shared_stride, const float *gates, int gates_stride, float *y, int y_stride, int width, int add) {
	int64_t row = blockIdx.x;
	if (rows[row].position < 0)
		return;
	places += row * used;
	weights += row * used;
	float factor = gates == 0 ? 1 : 1 / (1 + expf(-gates[row * gates_stride]));
	for (int i = threadIdx.x; i < width; i += blockDim.x) {
		float sum = 0;
		for (int j = 0; j < used; j++)
			sum += weights[j] * said[(int64_t)places[j] * said_stride + i];
		if (shared != 0)
			sum += factor * shared[row * shared_stride + i];
		write_product(y + row * y_stride + i, sum, add);
	}
}
