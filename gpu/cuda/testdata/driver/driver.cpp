// A stand-in for CUDA's driver that computes: the functions that the device calls, over the memory of this
// process, and the kernels' own sources compiled for the CPU. Tests build it as libcuda.so.1.
//
// It is stricter than a GPU. What a stream is given is done when somebody waits for it, and no sooner.
// Memory is filled with NaNs when it is allocated, and lies against pages that cannot be touched; so does
// a block's dynamic shared memory. A block whose threads do not meet at a barrier ends the process.
//
// The environment says what to play:
//
//	FAKE_CUDA_INIT=code       what cuInit returns
//	FAKE_CUDA_DEVICES=n       how many GPUs there are (1)
//	FAKE_CUDA_MEMORY=bytes    memory of each (1 GiB)
//	FAKE_CUDA_CAPABILITY=n    compute ten times the compute capability (90)
//	FAKE_CUDA_REVERSE=1       threads and blocks run in the opposite order
//	FAKE_CUDA_FAIL=run:n:code the n-th call from now on fails with code; another run begins to count anew.
//	                          Errors of kernels stay until the context is destroyed, and that of an illegal
//	                          address until there is another run: the process has it in every context.
//	FAKE_CUDA_ILLEGAL=n       the n-th kernel that is run from the start touches an illegal address
//
// cuDeviceGetAttribute has the numbers below besides NVIDIA's.

#include "troupe.cu"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LIVE_OBJECTS = 1000001, CALLS = 1000002, LAUNCHES = 1000003, GRAPHS = 1000004 };

#define EXPORT extern "C" __attribute__((visibility("default")))

Index threadIdx, blockIdx, blockDim, gridDim;
unsigned char *shared_bytes;

namespace {

[[noreturn]] void die(const std::string &why) {
	fprintf(stderr, "the stand-in for CUDA's driver: %s\n", why.c_str());
	abort();
}

std::string environment(const char *name, const char *missing) {
	const char *v = getenv(name);
	return v && *v ? v : missing;
}

// ---- Memory that ends at a page that cannot be touched.

size_t page = sysconf(_SC_PAGESIZE);

struct Guarded {
	unsigned char *base = nullptr, *at = nullptr;
	size_t mapped = 0, size = 0;
	explicit Guarded(size_t bytes) : size(bytes) {
		size_t rounded = (bytes + 15) / 16 * 16, pages = (rounded + page - 1) / page;
		mapped = (pages + 2) * page;
		void *p = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED || mprotect((char *)p + page, pages * page, PROT_READ | PROT_WRITE))
			die("no memory");
		base = (unsigned char *)p;
		at = base + page + pages * page - rounded;
		memset(at, 0xff, bytes);
	}
	~Guarded() { munmap(base, mapped); }
	Guarded(const Guarded &) = delete;
};

// ---- Threads of a block.

const int MOST_THREADS = 1024;
const size_t STACK = 64 << 10;

enum State { READY, AT_BLOCK, AT_WARP, DONE };

// Copy is to shared memory, and not made yet.
struct Copy {
	void *to;
	const void *from;
	int group;
};

struct Thread {
	void *stack_at;
	State state;
	uint64_t slots[2]; // what it gives other lanes, in turns
	int turn;
	float *sums; // of the product by tensor cores that it waits for
	uint32_t factors[6];
	std::vector<Copy> copies;
	int group; // that copies are put in
};

Thread threads[MOST_THREADS];
unsigned char *stacks;
void *scheduler_at;
int running;
std::function<void()> *body;

#if defined(__x86_64__)
extern "C" void change_stack(void **save, void *load);
__asm__(".text\n.globl change_stack\n.hidden change_stack\n.type change_stack, @function\nchange_stack:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
const int SAVED = 6;
#elif defined(__aarch64__)
extern "C" void change_stack(void **save, void *load);
__asm__(".text\n.globl change_stack\n.hidden change_stack\n.type change_stack, %function\nchange_stack:\n"
        "sub sp, sp, #160\nstp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
        "stp x27, x28, [sp, #64]\nstp d8, d9, [sp, #80]\nstp d10, d11, [sp, #96]\nstp d12, d13, [sp, #112]\nstp d14, d15, [sp, #128]\n"
        "stp x29, x30, [sp, #144]\nmov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\nldp d8, d9, [sp, #80]\nldp d10, d11, [sp, #96]\nldp d12, d13, [sp, #112]\nldp d14, d15, [sp, #128]\n"
        "ldp x29, x30, [sp, #144]\nadd sp, sp, #160\nret\n");
#else
#error "fibers are written for amd64 and arm64"
#endif

void leave(State s) {
	Thread &t = threads[running];
	t.state = s;
	change_stack(&t.stack_at, scheduler_at);
}

void begin() {
	(*body)();
	leave(DONE);
	die("a thread goes on after its end");
}

void prepare(int i) {
	Thread &t = threads[i];
	void **top = (void **)(stacks + (size_t)(i + 1) * STACK);
#if defined(__x86_64__)
	*--top = nullptr;       // a return address for begin, which keeps the stack aligned as after a call
	*--top = (void *)begin; // what change_stack returns to
	for (int r = 0; r < SAVED; r++)
		*--top = nullptr;
#else
	top -= 20;
	memset(top, 0, 160);
	top[19] = (void *)begin;
#endif
	t.stack_at = top;
	t.state = READY;
	t.turn = 0;
	t.sums = nullptr;
	t.copies.clear();
	t.group = 0;
}

void resume(int i) {
	running = i;
	threadIdx = {(unsigned)i, 0, 0};
	change_stack(&scheduler_at, threads[i].stack_at);
}

void run_block(int n, bool reverse) {
	if (!stacks) {
		stacks = (unsigned char *)mmap(nullptr, MOST_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (stacks == MAP_FAILED)
			die("no memory for stacks");
	}
	for (int i = 0; i < n; i++)
		prepare(i);
	int warps = (n + WARP - 1) / WARP;
	for (;;) {
		int waiting = 0, done = 0;
		for (int k = 0; k < warps; k++) {
			int w = reverse ? warps - 1 - k : k, first = w * WARP, last = std::min(n, first + WARP);
			for (;;) {
				int shuffling = 0, others = 0;
				for (int j = 0; j < last - first; j++) {
					int i = reverse ? last - 1 - j : first + j;
					if (threads[i].state == READY)
						resume(i);
					(threads[i].state == AT_WARP ? shuffling : others)++;
				}
				if (shuffling == 0)
					break;
				if (others > 0 || last - first < WARP)
					die("a warp shuffles, but not all of its lanes do");
				for (int i = first; i < last; i++)
					threads[i].state = READY;
			}
			for (int i = first; i < last; i++)
				(threads[i].state == DONE ? done : waiting)++;
		}
		if (waiting == 0)
			return;
		if (done > 0)
			die("some threads of a block wait at a barrier that others have not come to");
		for (int i = 0; i < n; i++)
			threads[i].state = READY;
	}
}

} // namespace

void synchronise() { leave(AT_BLOCK); }

uint64_t exchange(uint64_t value, int across) {
	int me = running, slot = threads[me].turn++ & 1;
	threads[me].slots[slot] = value;
	leave(AT_WARP);
	return threads[me ^ across].slots[slot];
}

// As the PTX ISA lays a warp's fragments out (tensor.cuh): the first lane that goes on multiplies for all.
void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
	Thread &me = threads[running];
	me.sums = d;
	std::copy_n(a, 4, me.factors);
	std::copy_n(b, 2, me.factors + 4);
	leave(AT_WARP);
	if (me.sums == nullptr)
		return;
	Thread *warp = &threads[running / WARP * WARP];
	float left[16][16], right[16][8];
	for (int lane = 0; lane < WARP; lane++) {
		if (warp[lane].sums == nullptr)
			die("some lanes of a warp multiply by tensor cores, others do something else");
		int g = lane / 4, t = lane % 4;
		for (int i = 0; i < 8; i++)
			left[g + i / 2 % 2 * 8][2 * t + i % 2 + i / 4 * 8] = half_to_float((uint16_t)(warp[lane].factors[i / 2] >> i % 2 * 16));
		for (int i = 0; i < 4; i++)
			right[2 * t + i % 2 + i / 2 * 8][g] = half_to_float((uint16_t)(warp[lane].factors[4 + i / 2] >> i % 2 * 16));
	}
	for (int r = 0; r < 16; r++) {
		float sums[8] = {};
		for (int k = 0; k < 16; k++)
			for (int c = 0; c < 8; c++)
				sums[c] += left[r][k] * right[k][c];
		for (int c = 0; c < 8; c++)
			warp[r % 8 * 4 + c / 2].sums[r / 8 * 2 + c % 2] += sums[c];
	}
	for (int lane = 0; lane < WARP; lane++)
		warp[lane].sums = nullptr;
}

void copy_16(void *shared, const void *from) { threads[running].copies.push_back({shared, from, threads[running].group}); }

void commit_copies() { threads[running].group++; }

void copy_all_but(int latest) {
	Thread &t = threads[running];
	size_t kept = 0;
	for (const Copy &c : t.copies) {
		if (c.group < t.group - latest)
			memcpy(c.to, c.from, 16);
		else
			t.copies[kept++] = c;
	}
	t.copies.resize(kept);
}

namespace {

// ---- Kernels.

struct Kernel {
	size_t parameters;
	std::function<std::function<void()>(void **)> bind;
};

template <typename... A, size_t... I> std::function<void()> bound(void (*f)(A...), void **p, std::index_sequence<I...>) {
	auto values = std::make_tuple(*(A *)p[I]...);
	return [f, values] { std::apply(f, values); };
}

template <typename... A> Kernel kernel(void (*f)(A...)) {
	return {sizeof...(A), [f](void **p) { return bound(f, p, std::index_sequence_for<A...>()); }};
}

const std::map<std::string, Kernel> &kernels() {
	static const std::map<std::string, Kernel> all = {
#define NAMED(name) {#name, kernel(name)},
#define NAMES(T, suffix) NAMED(multiply_1_##suffix) NAMED(multiply_8_##suffix) NAMED(multiply_64_##suffix) NAMED(embed_##suffix)
#define NAMES_OF_HALVES(T, suffix) NAMED(multiply_32_##suffix)
		FOR_EACH_TYPE(NAMES) FOR_EACH_TYPE_OF_HALVES(NAMES_OF_HALVES) NAMED(convert) NAMED(normalise) NAMED(add_normalised) NAMED(gate) NAMED(cap) NAMED(gather) NAMED(rotate_f16) NAMED(rotate_f32) NAMED(rotate_q8_0) NAMED(copy_block)
		NAMED(attend_f16) NAMED(attend_f32) NAMED(attend_q8_0) NAMED(attend_64) NAMED(attend_128) NAMED(merge) NAMED(route) NAMED(group) NAMED(mix) NAMED(choose)
	};
	return all;
}

// ---- The driver's objects.

std::mutex lock; // around every call

struct Function {
	const Kernel *kernel;
	int shared_most = 48 << 10;
};

struct Module {
	const std::map<std::string, size_t> *entries; // in the PTX, and how many parameters they have
	std::map<std::string, std::unique_ptr<Function>> functions;
};

typedef std::vector<std::function<CUresult()>> Work;

struct Graph {
	Work nodes;
};

// An executable graph takes memory of the GPU, as much as the device reckons with for each launch.
struct Executable {
	std::shared_ptr<Work> nodes;
	size_t bytes() const { return nodes->size() * (4 << 10); }
};

// An event is over when the work has been done that its stream was given before it was recorded.
struct Event {
	std::shared_ptr<bool> over;
	struct Stream *stream;
};

struct Stream {
	Work queue;
	// While it is captured: what it was given, by which thread, and whether the capture is invalid.
	std::unique_ptr<Graph> captured;
	std::thread::id by;
	bool invalid = false;

	CUresult give(std::function<CUresult()> f) {
		if (captured && invalid)
			return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
		(captured ? captured->nodes : queue).push_back(std::move(f));
		return CUDA_SUCCESS;
	}
};

struct Context {
	CUresult failed = CUDA_SUCCESS; // an error of a kernel, which stays
	std::map<CUdeviceptr, std::unique_ptr<Guarded>> memory;
	std::map<Module *, std::unique_ptr<Module>> modules;
	std::map<Stream *, std::unique_ptr<Stream>> streams;
	std::map<void *, std::unique_ptr<Guarded>> pinned;
	std::map<Graph *, std::unique_ptr<Graph>> graphs;
	std::map<Executable *, std::unique_ptr<Executable>> executables;
	std::map<Event *, std::unique_ptr<Event>> events;
	size_t used = 0;
	size_t objects() const { return 1 + events.size() + memory.size() + modules.size() + streams.size() + pinned.size() + graphs.size() + executables.size(); }
};

std::map<Context *, std::unique_ptr<Context>> contexts;
thread_local Context *current;
bool initialised;
int calls, launches, executed, graphs_launched;
CUresult stuck = CUDA_SUCCESS; // an error of the process, which stays

// entries reads which kernels are in a PTX text. The last one's are kept: it is the same each time.
const std::map<std::string, size_t> *entries(const std::string &ptx) {
	static std::string last;
	static std::map<std::string, size_t> found;
	if (ptx != last) {
		last = ptx;
		found.clear();
		const std::string mark = ".entry ";
		for (size_t at = 0; (at = ptx.find(mark, at)) != std::string::npos;) {
			at += mark.size();
			size_t name_end = ptx.find("(", at), end = ptx.find("{", at), parameters = 0;
			for (size_t p = name_end; (p = ptx.find(".param", p + 1)) < end;)
				parameters++;
			found[ptx.substr(at, name_end - at)] = parameters;
		}
	}
	return &found;
}

int capability() { return std::stoi(environment("FAKE_CUDA_CAPABILITY", "90")); }

size_t total() { return std::stoull(environment("FAKE_CUDA_MEMORY", "1073741824")); }

bool sticky(CUresult r) { return r == CUDA_ERROR_ILLEGAL_ADDRESS || r == CUDA_ERROR_LAUNCH_FAILED || r == CUDA_ERROR_ECC_UNCORRECTABLE; }

// due counts a call, and says which error it is to fail with.
CUresult due() {
	static std::string plan, run;
	static int at, code;
	const char *now = getenv("FAKE_CUDA_FAIL");
	if (!now)
		now = "";
	if (plan != now) {
		plan = now;
		char name[64] = "";
		at = code = 0;
		sscanf(now, "%63[^:]:%d:%d", name, &at, &code);
		if (run != name) {
			run = name;
			calls = 0;
			stuck = CUDA_SUCCESS;
		}
	}
	return ++calls == at ? (CUresult)code : CUDA_SUCCESS;
}

// enter begins a call: it returns what the call must return at once, if anything. Calls that need a context
// have one after it.
CUresult enter(bool needs_context, bool frees = false) {
	CUresult r = due();
	if (sticky(r) && contexts.count(current))
		current->failed = r;
	if (r == CUDA_ERROR_ILLEGAL_ADDRESS)
		stuck = r;
	if (r != CUDA_SUCCESS)
		return r;
	if (!initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!needs_context)
		return CUDA_SUCCESS;
	if (!current || !contexts.count(current))
		return CUDA_ERROR_INVALID_CONTEXT;
	return frees ? CUDA_SUCCESS : stuck ? stuck : current->failed;
}

// forbidden refuses what must not be done by a thread that captures a stream, and makes the capture invalid.
CUresult forbidden() {
	CUresult r = CUDA_SUCCESS;
	for (auto &s : current->streams)
		if (s.first->captured && s.first->by == std::this_thread::get_id()) {
			s.first->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	return r;
}

CUresult drain(Stream *s) {
	auto queue = std::move(s->queue);
	s->queue.clear();
	for (auto &f : queue)
		if (CUresult r = f())
			return r;
	return CUDA_SUCCESS;
}

// drain_until does a stream's work until something is over.
CUresult drain_until(Stream *s, const bool &over) {
	size_t n = 0;
	CUresult r = CUDA_SUCCESS;
	while (!over && !r && n < s->queue.size())
		r = s->queue[n++]();
	s->queue.erase(s->queue.begin(), s->queue.begin() + n);
	return r;
}

// inside says whether bytes at p are within one piece of the GPU's memory.
bool inside(CUdeviceptr p, size_t bytes) {
	auto i = current->memory.upper_bound(p);
	if (i == current->memory.begin())
		return false;
	--i;
	return p + bytes <= i->first + i->second->size;
}

bool is_pinned(const void *p) {
	auto i = current->pinned.upper_bound((void *)p);
	return i != current->pinned.begin() && (unsigned char *)p < (--i)->second->at + i->second->size;
}

} // namespace

#define ENTER(...) \
	std::lock_guard<std::mutex> held(lock); \
	if (CUresult r = enter(__VA_ARGS__)) \
		return r;

// The same for what must not be done while this thread captures a stream.
#define ENTER_UNCAPTURED(...) \
	ENTER(__VA_ARGS__) \
	if (CUresult r = forbidden()) \
		return r;

EXPORT CUresult cuInit(unsigned) {
	std::lock_guard<std::mutex> held(lock);
	if (CUresult r = due())
		return r;
	int code = std::stoi(environment("FAKE_CUDA_INIT", "0"));
	initialised = code == 0;
	return (CUresult)code;
}

EXPORT CUresult cuDriverGetVersion(int *v) {
	ENTER(false)
	*v = 11080;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *n) {
	ENTER(false)
	*n = std::stoi(environment("FAKE_CUDA_DEVICES", "1"));
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *d, int ordinal) {
	ENTER(false)
	if (ordinal < 0 || ordinal >= std::stoi(environment("FAKE_CUDA_DEVICES", "1")))
		return CUDA_ERROR_INVALID_DEVICE;
	*d = ordinal;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice) {
	ENTER(false)
	snprintf(name, size, "No GPU at all");
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice) {
	ENTER(false)
	*bytes = total();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice) {
	if (int number = a; number >= LIVE_OBJECTS && number <= GRAPHS) {
		std::lock_guard<std::mutex> held(lock);
		size_t n = 0;
		for (auto &c : contexts)
			n += c.first->objects();
		*v = number == LIVE_OBJECTS ? (int)n : number == CALLS ? calls : number == LAUNCHES ? launches : graphs_launched;
		return CUDA_SUCCESS;
	}
	ENTER(false)
	switch (a) {
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*v = capability() / 10;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*v = capability() % 10;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		*v = 4;
		return CUDA_SUCCESS;
	// A GPU of 4 multiprocessors at 1.5 GHz whose memory gives 64 GB/s.
	case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
		*v = 1500000;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
		*v = 1000000;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
		*v = 256;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
		*v = 99 << 10;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *c, unsigned, CUdevice) {
	ENTER(false)
	if (stuck)
		return stuck;
	auto made = std::make_unique<Context>();
	current = made.get();
	*c = (CUcontext)current;
	contexts[current] = std::move(made);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext c) {
	ENTER(false)
	if (!contexts.count((Context *)c))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (current == (Context *)c)
		current = nullptr;
	contexts.erase((Context *)c);
	return stuck;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext c) {
	ENTER(false)
	if (c && !contexts.count((Context *)c))
		return CUDA_ERROR_INVALID_CONTEXT;
	current = (Context *)c;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize() {
	ENTER_UNCAPTURED(true)
	for (auto &s : current->streams)
		if (CUresult r = drain(s.first))
			return r;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *all) {
	ENTER(true)
	*all = total();
	*free = total() - std::min(total(), current->used);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes) {
	ENTER_UNCAPTURED(true)
	if (bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (current->used + bytes > total())
		return CUDA_ERROR_OUT_OF_MEMORY;
	auto m = std::make_unique<Guarded>(bytes);
	*p = (CUdeviceptr)m->at;
	current->used += bytes;
	current->memory[*p] = std::move(m);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr p) {
	ENTER_UNCAPTURED(true, true)
	auto i = current->memory.find(p);
	if (i == current->memory.end())
		return CUDA_ERROR_INVALID_VALUE;
	for (auto &s : current->streams)
		drain(s.first);
	current->used -= i->second->size;
	current->memory.erase(i);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocHost_v2(void **p, size_t bytes) {
	ENTER_UNCAPTURED(true)
	auto m = std::make_unique<Guarded>(bytes);
	*p = m->at;
	current->pinned[*p] = std::move(m);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void *p) {
	ENTER_UNCAPTURED(true, true)
	return current->pinned.erase(p) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
	ENTER_UNCAPTURED(true)
	if (!inside(to, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	memcpy((void *)to, from, bytes);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream s) {
	ENTER(true)
	if (!inside(to, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (is_pinned(from))
		return ((Stream *)s)->give([=] { memcpy((void *)to, from, bytes); return CUDA_SUCCESS; });
	std::string copy((const char *)from, bytes); // pageable memory is read before the call returns
	return ((Stream *)s)->give([=] { memcpy((void *)to, copy.data(), bytes); return CUDA_SUCCESS; });
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream s) {
	ENTER(true)
	if (!inside(from, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	return ((Stream *)s)->give([=] { memcpy(to, (void *)from, bytes); return CUDA_SUCCESS; });
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char v, size_t n, CUstream s) {
	ENTER(true)
	if (!inside(to, n))
		return CUDA_ERROR_INVALID_VALUE;
	return ((Stream *)s)->give([=] { memset((void *)to, v, n); return CUDA_SUCCESS; });
}

EXPORT CUresult cuModuleLoadData(CUmodule *m, const void *image) {
	ENTER_UNCAPTURED(true)
	std::string text((const char *)image);
	if (text.find(".version") == std::string::npos || text.find(".target") == std::string::npos)
		return CUDA_ERROR_INVALID_IMAGE;
	int needed = 0;
	sscanf(text.c_str() + text.find(".target"), ".target sm_%d", &needed);
	if (needed > capability())
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	auto made = std::make_unique<Module>();
	made->entries = entries(text);
	*m = (CUmodule)made.get();
	current->modules[made.get()] = std::move(made);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule m) {
	ENTER_UNCAPTURED(true, true)
	return current->modules.erase((Module *)m) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
	ENTER(true)
	Module *module = (Module *)m;
	auto i = kernels().find(name);
	auto entry = module->entries->find(name);
	if (i == kernels().end() || entry == module->entries->end())
		return CUDA_ERROR_NOT_FOUND;
	if (entry->second != i->second.parameters)
		die(std::string(name) + " has other parameters in the PTX than in the source");
	auto &made = module->functions[name];
	if (!made)
		made = std::make_unique<Function>(Function{&i->second});
	*f = (CUfunction)made.get();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) {
	ENTER(true)
	if (a != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || v > 99 << 10)
		return CUDA_ERROR_INVALID_VALUE;
	((Function *)f)->shared_most = v;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, void **parameters, void **) {
	ENTER(true)
	Function *function = (Function *)f;
	if (gx < 1 || gy < 1 || gz < 1 || gx > 0x7fffffff || gy > 65535 || gz > 65535 || bx < 1 || by != 1 || bz != 1 || bx > MOST_THREADS)
		return CUDA_ERROR_INVALID_VALUE;
	if (shared > (unsigned)function->shared_most)
		return CUDA_ERROR_INVALID_VALUE;
	launches++;
	auto call = function->kernel->bind(parameters);
	return ((Stream *)s)->give([=]() mutable {
		if (++executed == std::stoi(environment("FAKE_CUDA_ILLEGAL", "0")))
			return stuck = CUDA_ERROR_ILLEGAL_ADDRESS;
		bool reverse = environment("FAKE_CUDA_REVERSE", "0") == "1";
		Guarded bytes(std::max(shared, 16u));
		shared_bytes = bytes.at;
		gridDim = {gx, gy, gz};
		blockDim = {bx, by, bz};
		body = &call;
		size_t blocks = (size_t)gx * gy * gz;
		for (size_t i = 0; i < blocks; i++) {
			size_t b = reverse ? blocks - 1 - i : i;
			blockIdx = {(unsigned)(b % gx), (unsigned)(b / gx % gy), (unsigned)(b / gx / gy)};
			memset(bytes.at, 0xff, shared);
			run_block(bx, reverse);
		}
		return CUDA_SUCCESS;
	});
}

EXPORT CUresult cuStreamCreate(CUstream *s, unsigned) {
	ENTER(true)
	auto made = std::make_unique<Stream>();
	*s = (CUstream)made.get();
	current->streams[made.get()] = std::move(made);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream s) {
	ENTER(true, true)
	return current->streams.erase((Stream *)s) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuStreamSynchronize(CUstream s) {
	ENTER(true)
	Stream *stream = (Stream *)s;
	if (stream->captured) {
		stream->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return drain(stream);
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode) {
	ENTER(true)
	Stream *stream = (Stream *)s;
	if (mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
		die("other threads may break this capture");
	if (!stream)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; // the stream without a name
	if (stream->captured)
		return CUDA_ERROR_ILLEGAL_STATE;
	stream->captured = std::make_unique<Graph>();
	stream->by = std::this_thread::get_id();
	stream->invalid = false;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream s, CUgraph *g) {
	std::lock_guard<std::mutex> held(lock);
	CUresult failed = enter(true);
	Stream *stream = (Stream *)s;
	*g = nullptr;
	if (!current || !current->streams.count(stream))
		return failed ? failed : CUDA_ERROR_INVALID_HANDLE;
	if (!stream->captured)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (stream->by != std::this_thread::get_id())
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	auto made = std::move(stream->captured); // also where it fails
	if (failed)
		return failed;
	if (stream->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	*g = (CUgraph)made.get();
	current->graphs[made.get()] = std::move(made);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph g) {
	ENTER(true, true)
	return current->graphs.erase((Graph *)g) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *e, CUgraph g, unsigned long long flags) {
	ENTER_UNCAPTURED(true)
	if (!current->graphs.count((Graph *)g) || flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	auto made = std::make_unique<Executable>(Executable{std::make_shared<Work>(((Graph *)g)->nodes)});
	if (current->used + made->bytes() > total())
		return CUDA_ERROR_OUT_OF_MEMORY;
	current->used += made->bytes();
	*e = (CUgraphExec)made.get();
	current->executables[made.get()] = std::move(made);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec e, CUstream s) {
	ENTER(true)
	if (!current->executables.count((Executable *)e))
		return CUDA_ERROR_INVALID_VALUE;
	if (((Stream *)s)->captured)
		die("graphs within graphs are not played");
	graphs_launched++;
	auto nodes = ((Executable *)e)->nodes;
	return ((Stream *)s)->give([=] {
		for (auto &f : *nodes)
			if (CUresult r = f())
				return r;
		return CUDA_SUCCESS;
	});
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec e) {
	ENTER(true, true)
	auto i = current->executables.find((Executable *)e);
	if (i == current->executables.end())
		return CUDA_ERROR_INVALID_VALUE;
	current->used -= i->second->bytes();
	current->executables.erase(i);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent *e, unsigned) {
	ENTER(true)
	auto made = std::make_unique<Event>();
	*e = (CUevent)made.get();
	current->events[made.get()] = std::move(made);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent e, CUstream s) {
	ENTER(true)
	if (!current->events.count((Event *)e))
		return CUDA_ERROR_INVALID_HANDLE;
	if (((Stream *)s)->captured)
		die("events within graphs are not played");
	auto over = std::make_shared<bool>(false);
	*(Event *)e = Event{over, (Stream *)s};
	return ((Stream *)s)->give([=] { *over = true; return CUDA_SUCCESS; });
}

EXPORT CUresult cuEventSynchronize(CUevent e) {
	ENTER(true)
	if (!current->events.count((Event *)e))
		return CUDA_ERROR_INVALID_HANDLE;
	Event *event = (Event *)e;
	return event->over ? drain_until(event->stream, *event->over) : CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent e) {
	ENTER(true, true)
	return current->events.erase((Event *)e) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
