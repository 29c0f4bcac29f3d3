//go:build cuda && cgo && linux && (amd64 || arm64)

package driver

/*
#cgo LDFLAGS: -L${SRCDIR}/link -ldl
#include <stdlib.h>
#include <cuda.h>

int troupe_driver_load(const char *path, char *message, int size);
*/
import "C"

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"gorgonia.org/cu"
)

// Library is the name of the driver's library, as the dynamic linker looks for it. Tests put the path of
// another in its place, before Load is first called.
var Library = "libcuda.so.1"

// Load opens the driver and initialises it. It may be called again: the library is opened once, and
// initialised once more, which does no harm.
func Load() error {
	path := C.CString(Library)
	defer C.free(unsafe.Pointer(path))
	var message [512]C.char
	switch code := C.troupe_driver_load(path, &message[0], C.int(len(message))); {
	case code < 0:
		return fmt.Errorf("CUDA's driver is not here: %s", C.GoString(&message[0]))
	case code > 0:
		return fmt.Errorf("CUDA's driver does not start: %w", Error(code))
	}
	return nil
}

// Error is a CUresult other than success.
type Error int

// Error is what NVIDIA calls it and what that means, for the codes that a person may meet.
func (e Error) Error() string {
	if s, ok := meanings[e]; ok {
		return fmt.Sprintf("%s (CUDA error %d)", s, int(e))
	}
	return fmt.Sprintf("CUDA error %d", int(e))
}

// OutOfMemory is the error of an allocation for which there is no room, NoDevice that of a driver without
// a GPU.
const (
	OutOfMemory Error = C.CUDA_ERROR_OUT_OF_MEMORY
	NoDevice    Error = C.CUDA_ERROR_NO_DEVICE
)

// MaxSharedMemory is the attribute of a GPU that says how much shared memory a block can be given.
const MaxSharedMemory cu.DeviceAttribute = C.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN

// Sticky says whether an error stays: by CUDA's documentation all further work of the process may fail with it,
// or the GPU's memory is not to be trusted before another process starts. Often a new context is enough.
func (e Error) Sticky() bool {
	switch e {
	case C.CUDA_ERROR_ECC_UNCORRECTABLE, C.CUDA_ERROR_NVLINK_UNCORRECTABLE, C.CUDA_ERROR_ILLEGAL_ADDRESS, C.CUDA_ERROR_LAUNCH_TIMEOUT, C.CUDA_ERROR_ASSERT,
		C.CUDA_ERROR_HARDWARE_STACK_ERROR, C.CUDA_ERROR_ILLEGAL_INSTRUCTION, C.CUDA_ERROR_MISALIGNED_ADDRESS, C.CUDA_ERROR_INVALID_ADDRESS_SPACE,
		C.CUDA_ERROR_INVALID_PC, C.CUDA_ERROR_LAUNCH_FAILED, C.CUDA_ERROR_EXTERNAL_DEVICE:
		return true
	}
	return false
}

var meanings = map[Error]string{
	C.CUDA_ERROR_INVALID_VALUE:              "an argument is out of range",
	OutOfMemory:                             "out of memory",
	C.CUDA_ERROR_NOT_INITIALIZED:            "the driver is not initialised",
	C.CUDA_ERROR_DEINITIALIZED:              "the driver is shutting down",
	C.CUDA_ERROR_STUB_LIBRARY:               "the library is a stub for linking, not a driver",
	C.CUDA_ERROR_DEVICE_UNAVAILABLE:         "the GPU is in use by another process that has it alone",
	NoDevice:                                "there is no GPU",
	C.CUDA_ERROR_INVALID_DEVICE:             "there is no such GPU",
	C.CUDA_ERROR_INVALID_IMAGE:              "the kernels are not readable",
	C.CUDA_ERROR_INVALID_CONTEXT:            "the context is gone",
	C.CUDA_ERROR_NO_BINARY_FOR_GPU:          "the kernels are not for this GPU",
	C.CUDA_ERROR_ECC_UNCORRECTABLE:          "the GPU's memory had an error that could not be corrected",
	C.CUDA_ERROR_INVALID_PTX:                "the driver cannot compile the kernels",
	C.CUDA_ERROR_UNSUPPORTED_PTX_VERSION:    "the driver is too old for the kernels: it must be that of CUDA 11.8 (520) or later",
	C.CUDA_ERROR_NVLINK_UNCORRECTABLE:       "the link between GPUs had an error that could not be corrected",
	C.CUDA_ERROR_JIT_COMPILER_NOT_FOUND:     "the driver's compiler, libnvidia-ptxjitcompiler, is not installed",
	C.CUDA_ERROR_OPERATING_SYSTEM:           "a call to the operating system failed",
	C.CUDA_ERROR_NOT_FOUND:                  "something named is not there",
	C.CUDA_ERROR_ILLEGAL_ADDRESS:            "a kernel touched memory that isn't there",
	C.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:    "a kernel wants more registers or shared memory than there are",
	C.CUDA_ERROR_LAUNCH_TIMEOUT:             "a kernel took too long",
	C.CUDA_ERROR_ILLEGAL_INSTRUCTION:        "a kernel has an instruction that the GPU does not know",
	C.CUDA_ERROR_MISALIGNED_ADDRESS:         "a kernel read across an alignment",
	C.CUDA_ERROR_LAUNCH_FAILED:              "a kernel failed",
	C.CUDA_ERROR_ILLEGAL_STATE:              "a stream or graph is not in a state for the call",
	C.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: "the call is not permitted while a stream is captured",
	C.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: "the capture of a stream is invalid after an error before",
	C.CUDA_ERROR_NOT_PERMITTED:              "the operation is not permitted",
	C.CUDA_ERROR_NOT_SUPPORTED:              "the driver does not support the operation",
	C.CUDA_ERROR_SYSTEM_NOT_READY:           "the system is not ready: where GPUs are joined by NVSwitch, is nvidia-fabricmanager running?",
	C.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:     "the kernel's module and the driver's library have different versions: reboot, or reload the module",
	C.CUDA_ERROR_UNKNOWN:                    "an unknown error",
}

// Explain makes an Error of what cu returns, whose own texts are bare names and miss some codes.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	if code, ok := codeOf(err); ok {
		return Error(code)
	}
	return err
}

func result(code C.CUresult) error {
	if code == C.CUDA_SUCCESS {
		return nil
	}
	return Error(code)
}

// codeOf is the number in an error of cu, whose type is not exported; its kind is int.
func codeOf(err error) (int, bool) {
	v := reflect.ValueOf(err)
	if v.Kind() != reflect.Int {
		return 0, false
	}
	return int(v.Int()), true
}

// AllocHost allocates page-locked memory on the host, from and to which copies run beside the program. It
// is not Go's, and is given back by FreeHost.
func AllocHost(bytes int) ([]byte, error) {
	var p unsafe.Pointer
	if err := result(C.cuMemAllocHost(&p, C.size_t(bytes))); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), bytes), nil
}

// FreeHost gives memory of AllocHost back.
func FreeHost(memory []byte) error { return result(C.cuMemFreeHost(unsafe.Pointer(&memory[0]))) }

// AllowShared lets blocks of a kernel have up to bytes of dynamic shared memory, which is needed for more
// than 48 KiB.
func AllowShared(fn cu.Function, bytes int) error {
	return result(C.cuFuncSetAttribute(*(*C.CUfunction)(unsafe.Pointer(&fn)), C.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, C.int(bytes)))
}

// ErrNoGPU says that the driver is there and has no GPU.
var ErrNoGPU = errors.New("CUDA's driver finds no GPU")
