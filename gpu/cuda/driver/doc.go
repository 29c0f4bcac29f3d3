// Package driver opens CUDA's driver at run time, and has what gorgonia.org/cu lacks of it.
//
// Linked as its author meant it, cu needs libcuda.so.1 for the program to start at all, and ends the
// process, before main, where that finds no GPU. So this package stands in for the library: it defines
// every function of the driver that cu calls, as a jump through a table (driver.c), and an empty library
// for the linker to find (link/libcuda.a). Load opens the real one, if it is there, and fills the table.
// Until then every function returns NotInitialized, and the program runs anywhere.
//
// All of it is built with the tag cuda, and needs cgo and CUDA's headers.
package driver
