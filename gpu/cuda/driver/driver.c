//go:build cuda && cgo && linux && (amd64 || arm64)

/* What stands in for libcuda: see doc.go. Every function of symbols.h is a jump through a slot, which
   first leads to a function that says "not initialised", and, once the driver is loaded, to the driver's
   own. So the program is linked without the driver's library and starts where there is none. */

#include <dlfcn.h>
#include <stdio.h>
#include <stdint.h>

/* The values of CUresult that this file returns; cuda.h has them all. */
enum { NOT_INITIALIZED = 3, NOT_SUPPORTED = 801 };

static int not_loaded(void) { return NOT_INITIALIZED; }
static int not_there(void) { return NOT_SUPPORTED; }

#define TROUPE_SYMBOL(name) void *troupe_slot_##name = (void *)not_loaded;
#include "symbols.h"
#undef TROUPE_SYMBOL

#if defined(__x86_64__)
#define JUMP(name) "jmp *troupe_slot_" #name "(%rip)\n"
#elif defined(__aarch64__)
/* x16 is the register that a linker's own stubs may use between a call and its target. */
#define JUMP(name) "adrp x16, troupe_slot_" #name "\nldr x16, [x16, :lo12:troupe_slot_" #name "]\nbr x16\n"
#endif

#define TROUPE_SYMBOL(name) \
	__asm__(".text\n.p2align 4\n.globl " #name "\n.type " #name ", %function\n" #name ":\n" JUMP(name) ".size " #name ", .-" #name "\n");
#include "symbols.h"
#undef TROUPE_SYMBOL
__asm__(".section .note.GNU-stack,\"\",%progbits\n.text\n");

/* gorgonia.org/cu calls cuInit before main, and ends the process when it fails. So this one does nothing,
   and the driver's is called by troupe_driver_load. */
int cuInit(unsigned flags) {
	(void)flags;
	return 0;
}

/* troupe_driver_load opens the driver's library and fills the slots. It returns 0, or −1 and why in
   message, or what the driver's cuInit says. */
int troupe_driver_load(const char *path, char *message, int size) {
	static void *library;
	static int (*init)(unsigned);
	if (library == NULL) {
		void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (opened == NULL) {
			snprintf(message, size, "%s", dlerror());
			return -1;
		}
		init = (int (*)(unsigned))dlsym(opened, "cuInit");
		if (init == NULL) {
			snprintf(message, size, "%s has no cuInit: it is not CUDA's driver", path);
			dlclose(opened);
			return -1;
		}
		library = opened;
		void *found;
#define TROUPE_SYMBOL(name) \
		found = dlsym(library, #name); \
		troupe_slot_##name = found != NULL ? found : (void *)not_there;
#include "symbols.h"
#undef TROUPE_SYMBOL
	}
	return init(0);
}
