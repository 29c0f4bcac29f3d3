package tokenizer

import "unicode"

// newer are the characters that came with Unicode 15.1 and 16 (and the decimal digits of 17), which
// the reference implementations know; Go's tables may be older. From the Unicode Character Database.
var newer = []struct {
	class class
	table *unicode.RangeTable
}{
	{mark, rangeTable([]unicode.Range16{{Lo: 0x0897, Hi: 0x0897}}, []unicode.Range32{
		{Lo: 0x10D69, Hi: 0x10D6D}, {Lo: 0x10EFC, Hi: 0x10EFC}, {Lo: 0x113B8, Hi: 0x113C0}, {Lo: 0x113C2, Hi: 0x113C2},
		{Lo: 0x113C5, Hi: 0x113C5}, {Lo: 0x113C7, Hi: 0x113CA}, {Lo: 0x113CC, Hi: 0x113D0}, {Lo: 0x113D2, Hi: 0x113D2},
		{Lo: 0x113E1, Hi: 0x113E2}, {Lo: 0x11F5A, Hi: 0x11F5A}, {Lo: 0x1611E, Hi: 0x1612F}, {Lo: 0x1E5EE, Hi: 0x1E5EF},
	})},
	{upper, rangeTable([]unicode.Range16{
		{Lo: 0x1C89, Hi: 0x1C89}, {Lo: 0xA7CB, Hi: 0xA7CC}, {Lo: 0xA7DA, Hi: 0xA7DA}, {Lo: 0xA7DC, Hi: 0xA7DC},
	}, []unicode.Range32{{Lo: 0x10D50, Hi: 0x10D65}})},
	{lower, rangeTable([]unicode.Range16{
		{Lo: 0x1C8A, Hi: 0x1C8A}, {Lo: 0xA7CD, Hi: 0xA7CD}, {Lo: 0xA7DB, Hi: 0xA7DB},
	}, []unicode.Range32{{Lo: 0x10D70, Hi: 0x10D85}})},
	{letter, rangeTable(nil, []unicode.Range32{
		{Lo: 0x105C0, Hi: 0x105F3}, {Lo: 0x10D4A, Hi: 0x10D4F}, {Lo: 0x10D6F, Hi: 0x10D6F}, {Lo: 0x10EC2, Hi: 0x10EC4},
		{Lo: 0x11380, Hi: 0x11389}, {Lo: 0x1138B, Hi: 0x1138B}, {Lo: 0x1138E, Hi: 0x1138E}, {Lo: 0x11390, Hi: 0x113B5},
		{Lo: 0x113B7, Hi: 0x113B7}, {Lo: 0x113D1, Hi: 0x113D1}, {Lo: 0x113D3, Hi: 0x113D3}, {Lo: 0x11BC0, Hi: 0x11BE0},
		{Lo: 0x13460, Hi: 0x143FA}, {Lo: 0x16100, Hi: 0x1611D}, {Lo: 0x16D40, Hi: 0x16D6C}, {Lo: 0x18CFF, Hi: 0x18CFF},
		{Lo: 0x1E5D0, Hi: 0x1E5ED}, {Lo: 0x1E5F0, Hi: 0x1E5F0}, {Lo: 0x2EBF0, Hi: 0x2EE5D},
	})},
	{number, rangeTable(nil, []unicode.Range32{
		{Lo: 0x10D40, Hi: 0x10D49}, {Lo: 0x116D0, Hi: 0x116E3}, {Lo: 0x11BF0, Hi: 0x11BF9}, {Lo: 0x11DE0, Hi: 0x11DE9},
		{Lo: 0x16130, Hi: 0x16139}, {Lo: 0x16D70, Hi: 0x16D79}, {Lo: 0x16FF4, Hi: 0x16FF6}, {Lo: 0x1CCF0, Hi: 0x1CCF9},
		{Lo: 0x1E5F1, Hi: 0x1E5FA},
	})},
}

// rangeTable makes a table of ranges without gaps.
func rangeTable(r16 []unicode.Range16, r32 []unicode.Range32) *unicode.RangeTable {
	for i := range r16 {
		r16[i].Stride = 1
	}
	for i := range r32 {
		r32[i].Stride = 1
	}
	return &unicode.RangeTable{R16: r16, R32: r32}
}
