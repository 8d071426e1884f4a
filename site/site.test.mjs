// Opens the built site in a headless Chromium, as a reader would. CHROMIUM is its path, if it is not the one of Debian.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import http from 'node:http'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { chromium } from 'playwright-core'
import { index, out, pages as files, root, where } from './repository.mjs'

const types = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml', '.json': 'application/json' }
const pages = files.map(where)
const errors = []
let server, browser, origin

before(async () => {
  server = http.createServer((request, response) => {
    const file = path.join(out, decodeURI(new URL(request.url, 'http://site').pathname).replace(/\/$/, '/index.html'))
    if (!fs.existsSync(file)) {
      errors.push(`${request.url} is not there`)
      response.writeHead(404).end()
      return
    }
    response.writeHead(200, { 'content-type': types[path.extname(file)] ?? 'application/octet-stream' })
    response.end(fs.readFileSync(file))
  })
  await new Promise((listening) => server.listen(0, '127.0.0.1', listening))
  origin = `http://127.0.0.1:${server.address().port}`
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox'],
    ignoreDefaultArgs: ['--hide-scrollbars'],
  })
})

after(async () => {
  await browser?.close()
  server?.close()
})

// open returns a page of the browser that has loaded an address of the site. What the browser reports as an error is kept.
async function open(where, options) {
  const page = await browser.newPage(options)
  page.on('pageerror', (error) => errors.push(`${where}: ${error}`))
  page.on('console', (message) => message.type() === 'error' && errors.push(`${where}: ${message.text()}`))
  await visit(page, where)
  return page
}

// visit returns when the page's scripts run.
async function visit(page, where) {
  await page.goto(origin + where)
  await page.waitForFunction(() => document.querySelector('#app').__vue_app__)
}

test('search finds a binding', async () => {
  const page = await open('/')
  await page.keyboard.press('Control+k')
  await page.locator('.VPLocalSearchBox input').fill('masquerade')
  await page.locator('.VPLocalSearchBox .result').first().click()
  await page.waitForURL((to) => to.pathname !== '/' || to.hash !== '')
  assert.match(await page.locator('.vp-doc').innerText(), /masquerade/)
  await page.close()
})

test('the navigation has each page, in the order of the index', async () => {
  const page = await open(where(index))
  const links = (selector) => page.locator(selector).evaluateAll((all) => all.map((a) => new URL(a.href).pathname))
  const navigation = await links('.VPSidebar a')
  const listed = await links('.vp-doc table a')
  assert.deepEqual(navigation, listed.filter((page) => pages.includes(page)))
  assert.equal(await page.locator('.VPSidebar .items a:visible').count(), 0, 'a group without the page is folded')
  await page.locator('.VPSidebar .caret').first().click()
  assert.ok(await page.locator('.VPSidebar .items a:visible').count())
  assert.deepEqual([...navigation].sort(), pages.slice(1).filter((page) => page !== where(index)).sort())
  await page.close()
})

test('dark mode is one click away, for pictures too', async () => {
  const page = await open(where('docs/contributing/pictures.md'), { colorScheme: 'light' })
  const scheme = () => page.evaluate(() => getComputedStyle(document.documentElement).colorScheme)
  const picture = page.locator('.vp-doc img').first()
  const light = await picture.screenshot()
  assert.notEqual(await scheme(), 'dark')
  await page.locator('.VPNavBarAppearance button').click()
  assert.equal(await scheme(), 'dark')
  assert.notDeepEqual(await picture.screenshot(), light)
  await page.close()
})

test('pages show their pictures, and fit a phone', async () => {
  const page = await open('/', { viewport: { width: 375, height: 800 }, isMobile: true, hasTouch: true })
  let pictures = 0
  for (const where of pages) {
    await visit(page, where)
    const seen = await page.evaluate(async () => {
      const pictures = [...document.querySelectorAll('.vp-doc img')]
      await Promise.all(pictures.map((img) => img.decode().catch(() => {})))
      return {
        pictures: pictures.length,
        missing: pictures.filter((img) => img.naturalWidth === 0).map((img) => img.src),
        unnamed: pictures.filter((img) => !img.alt).map((img) => img.src),
        width: document.documentElement.scrollWidth,
        wide: [...document.querySelectorAll('.vp-doc *')]
          .filter((e) => e.getBoundingClientRect().right > 376 && !e.closest('table, pre, [class*=language-]'))
          .map((e) => e.outerHTML.slice(0, 200)),
      }
    })
    pictures += seen.pictures
    assert.deepEqual(seen, { pictures: seen.pictures, missing: [], unnamed: [], width: 375, wide: [] }, where)
  }
  assert.ok(pictures > 0)
  await page.close()
})

test('the bar at the top fits each window', async () => {
  const page = await open('/')
  for (const width of [375, 768, 800, 960, 1024, 1280]) {
    await page.setViewportSize({ width, height: 800 })
    const seen = await page.evaluate(() => ({
      page: document.documentElement.scrollWidth <= innerWidth,
      outside: [...document.querySelectorAll('.VPNavBar *')].filter((e) => e.getBoundingClientRect().right > innerWidth).map((e) => e.className),
    }))
    assert.deepEqual(seen, { page: true, outside: [] }, `${width} dots`)
  }
  await page.close()
})

test('the first screen says what it is for, and has three buttons', async () => {
  const page = await open('/', { viewport: { width: 375, height: 667 }, isMobile: true, hasTouch: true })
  const bottom = (selector) => page.locator(selector).evaluateAll((all) => all.map((e) => e.getBoundingClientRect().bottom <= 667))
  assert.deepEqual(await bottom('.vp-doc h1, .vp-doc .lead'), [true, true])
  assert.deepEqual(await bottom('.vp-doc .start a'), [true, true, true])
  assert.match(await page.locator('.vp-doc .lead').innerText(), /gives a virtual machine the network of /)
  const buttons = await page.locator('.vp-doc .start a').evaluateAll((all) => all.map((a) => a.getBoundingClientRect().height >= 36))
  assert.deepEqual(buttons, [true, true, true])
  await page.close()
})

test('inline code does not look like a link', async () => {
  const page = await open('/')
  for (const where of pages) {
    await visit(page, where)
    const alike = await page.evaluate(() => {
      const colour = (e) => getComputedStyle(e).color
      const links = new Set([...document.querySelectorAll('.vp-doc p a, .vp-doc td a')].map(colour))
      const code = [...document.querySelectorAll('.vp-doc :not(pre, a) > code')]
      return code.filter((e) => links.has(colour(e)) || colour(e) !== colour(e.parentElement)).map((e) => e.innerText)
    })
    assert.deepEqual(alike, [], where)
  }
  await page.close()
})

test('a table that is wider than a phone shows that it scrolls, and its first column stays', async () => {
  const page = await open('/', { viewport: { width: 375, height: 800 }, isMobile: true, hasTouch: true })
  let wide = 0
  for (const address of pages) {
    await visit(page, address)
    const tables = await page.evaluate(() =>
      [...document.querySelectorAll('.vp-doc table')]
        .filter((table) => table.scrollWidth > table.clientWidth)
        .map((table) => {
          const box = (e) => e.getBoundingClientRect()
          const cells = [...table.rows].map((row) => [row.cells[0], row.cells[row.cells.length - 1]])
          const before = cells.map(([first]) => box(first).left)
          table.scrollLeft = table.scrollWidth
          const end = box(table).left + table.clientWidth + table.clientLeft
          return {
            heading: cells[0][1].innerText,
            bar: table.offsetHeight - table.clientHeight >= 6,
            stays: cells.every(([first], i) => Math.abs(box(first).left - before[i]) < 1),
            opaque: cells.every(([first]) => /^rgb\(/.test(getComputedStyle(first).backgroundColor)),
            narrow: cells.every(([first]) => box(first).width <= 0.45 * table.clientWidth),
            last: cells.every(([first, last]) => box(last).right <= end + 1 && box(last).right > box(first).right + 40),
          }
        }),
    )
    for (const table of tables) {
      const right = { bar: true, stays: true, opaque: true, narrow: true, last: true }
      assert.deepEqual(table, { heading: table.heading, ...right }, address)
    }
    wide += tables.length
  }
  assert.ok(wide > 0)
  await visit(page, where('docs/explanation/compare.md'))
  const table = page.locator('#features + table')
  const header = await table.evaluate((table) => {
    table.scrollTo(0, 1e5)
    const seen = [table.scrollTop, table.rows[0].cells[0].getBoundingClientRect().top - table.getBoundingClientRect().top]
    table.scrollTo(0, 0)
    return seen
  })
  assert.ok(header[0] > 100 && Math.abs(header[1]) < 3, `scrolled by ${header[0]}, and the header is at ${header[1]}`)
  await table.evaluate((e) => e.scrollIntoView({ behavior: 'instant' }))
  const edge = async (left) => {
    await table.evaluate((e, left) => (e.scrollLeft = left), left)
    const { x, y } = await table.boundingBox()
    const right = x + (await table.evaluate((e) => e.clientLeft + e.clientWidth)) // beside the bar
    const png = await page.screenshot({ clip: { x: right - 4, y: y + 150, width: 3, height: 300 } })
    return page.evaluate(async (source) => {
      const img = Object.assign(new Image(), { src: source })
      await img.decode()
      const canvas = new OffscreenCanvas(img.naturalWidth, img.naturalHeight).getContext('2d')
      canvas.drawImage(img, 0, 0)
      const { data } = canvas.getImageData(0, 0, img.naturalWidth, img.naturalHeight)
      return data.filter((_, i) => i % 4 === 0).reduce((sum, red) => sum + red, 0) / (data.length / 4)
    }, `data:image/png;base64,${png.toString('base64')}`)
  }
  const [more, end] = [await edge(0), await edge(1e5)]
  assert.ok(more < 225 && end > 245, `brightness of the edge: ${more} where more follows, ${end} at the end`)
  await page.close()
})

test('code that is wider than a phone shows that it scrolls', async () => {
  const page = await open('/', { viewport: { width: 375, height: 800 }, isMobile: true, hasTouch: true })
  let wide = 0
  for (const address of pages) {
    await visit(page, address)
    const bars = await page.evaluate(() =>
      [...document.querySelectorAll('.vp-doc pre')].filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.offsetHeight - e.clientHeight >= 6),
    )
    assert.deepEqual(bars, bars.map(() => true), address)
    wide += bars.length
  }
  assert.ok(wide > 0)
  await page.close()
})

test('a page of more than three screens of a phone has an outline', async () => {
  const page = await open('/', { viewport: { width: 375, height: 800 }, isMobile: true, hasTouch: true })
  const without = []
  for (const where of pages) {
    await visit(page, where)
    const seen = await page.evaluate(() => ({
      long: document.querySelector('.vp-doc').scrollHeight > 3 * innerHeight,
      headings: document.querySelectorAll('.vp-doc :is(h2, h3)').length,
    }))
    if (seen.long && seen.headings < 2) {
      without.push(where)
    } else if (seen.long) {
      await page.waitForFunction((n) => document.querySelectorAll('.VPDocAsideOutline a').length === n, seen.headings)
      await page.locator('.VPLocalNavOutlineDropdown').waitFor()
    }
  }
  assert.deepEqual(without, [])
  await page.close()
})

test('librsvg shows the pictures as the browser does', async () => {
  const page = await open('/', { colorScheme: 'light' })
  const folder = path.join(root, 'docs/pictures')
  for (const name of fs.readdirSync(folder).filter((name) => name.endsWith('.svg'))) {
    const svg = fs.readFileSync(path.join(folder, name))
    const png = execFileSync('rsvg-convert', [path.join(folder, name)])
    const drawn = [`data:image/svg+xml;base64,${svg.toString('base64')}`, `data:image/png;base64,${png.toString('base64')}`]
    const other = await page.evaluate(async (sources) => {
      const [a, b] = await Promise.all(
        sources.map(async (source) => {
          const img = new Image()
          img.src = source
          await img.decode()
          const canvas = new OffscreenCanvas(img.naturalWidth, img.naturalHeight).getContext('2d')
          canvas.drawImage(img, 0, 0)
          return canvas.getImageData(0, 0, img.naturalWidth, img.naturalHeight).data
        }),
      )
      let other = a.length === b.length ? 0 : 4 * a.length
      for (let i = 0; i < a.length; i += 4) {
        other += [0, 1, 2, 3].some((c) => Math.abs(a[i + c] - b[i + c]) > 16) ? 4 : 0
      }
      return other / a.length
    }, drawn)
    assert.ok(other < 0.1, `${name}: ${(100 * other).toFixed(1)} % of the dots differ`) // of letters, the fonts differ
  }
  await page.close()
})

test('the browser reported no error', () => assert.deepEqual(errors, []))
